// Gives a picture of the explorer the height that it reports.
addEventListener("message", ({ data, source }) => {
  const frame = [...document.querySelectorAll("iframe.picture")].find((one) => one.contentWindow === source)
  if (frame && Number.isFinite(data?.ropewalk)) frame.style.height = `${data.ropewalk + 8}px`
})
