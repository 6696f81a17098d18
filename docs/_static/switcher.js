// `make site` puts the versions side by side, each in its folder, and their names into switcher.json beside them.
// Without that file, as after `make docs` or where pages are opened as files, no switcher is shown.
(async () => {
  const folder = new URL(document.documentElement.dataset.content_root, location.href)
  const site = new URL("../", folder)
  const page = location.href.slice(folder.href.length)
  const current = folder.pathname.split("/").at(-2)

  const response = await fetch(new URL("switcher.json", site))
  const versions = response.ok ? await response.json() : []
  if (!versions.includes(current)) return

  const label = document.querySelector(".version-switcher")
  const select = label.querySelector("select")
  select.append(...versions.map((version) => new Option(version, version, false, version === current)))
  label.hidden = false
  select.addEventListener("change", async () => {
    const chosen = new URL(`${select.value}/`, site)
    const same = new URL(page, chosen)
    const { ok } = await fetch(same, { method: "HEAD" })
    location.href = ok ? same : new URL("index.html", chosen)
  })
})().catch(() => {})
