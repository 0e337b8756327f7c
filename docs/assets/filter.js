// Adds a field that filters the rows of the tables of a page: those in <div class="filter">. Without scripts every row is shown.
(() => {
  const part = document.querySelector(".filter")
  if (!part) return
  const rows = [...part.querySelectorAll("tbody tr")]
  const bare = (text) => text.toLowerCase().replace(/[^a-z0-9]/g, "")
  const contents = rows.map((row) => bare(row.textContent))
  const input = Object.assign(document.createElement("input"), {
    type: "search", placeholder: "Filter the tables: ministral, Qwen 3, yarn, 2 axes, ...", ariaLabel: "Filter the tables",
  })
  const count = Object.assign(document.createElement("output"), { className: "filter-count" })
  const field = Object.assign(document.createElement("p"), { className: "filter-field" })
  const show = () => {
    const words = input.value.trim().split(/\s+/)
    let matches = contents.map(() => true)
    for (; words.length; words.pop()) { // "Llama 3.1 8B" matches nothing: try "Llama 3.1", then "Llama"
      const wanted = bare(words.join(""))
      matches = contents.map((content) => content.includes(wanted))
      if (matches.includes(true)) break
    }
    rows.forEach((row, index) => { row.hidden = !matches[index] })
    for (const table of part.querySelectorAll("table")) {
      table.classList.toggle("filter-empty", ![...table.tBodies[0].rows].some((row) => !row.hidden))
    }
    const active = input.value.trim() !== ""
    if (active && !part.classList.contains("filter-active")) field.scrollIntoView()
    part.classList.toggle("filter-active", active) // the rows follow the field: the text between is not displayed
    const used = words.length && active ? ` with "${words.join(" ")}"` : ""
    count.value = `${matches.filter(Boolean).length} of ${rows.length} rows${used}`
  }
  input.addEventListener("input", show)
  field.append(input, count)
  part.prepend(field)
  show()
})()
