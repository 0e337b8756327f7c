// Typesets the formulas of a page that has some, with the KaTeX that lies beside; nothing is fetched from elsewhere.
(() => {
  const folder = new URL("katex/", document.currentScript.src)
  const formulas = document.querySelectorAll(".arithmatex")
  if (!formulas.length) return
  const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("katex.min.css", folder) })
  const script = Object.assign(document.createElement("script"), { src: new URL("katex.min.js", folder) })
  script.onload = () => {
    for (const formula of formulas) {
      const text = formula.textContent.trim()
      katex.render(text.slice(2, -2), formula, { displayMode: text.startsWith("\\["), throwOnError: false })
    }
  }
  document.head.append(style, script)
})()
