// Times in the viewer's zone: that of UTC stays in the title.
const year = new Date().getFullYear()
for (const time of document.querySelectorAll("time")) {
  const at = new Date(time.dateTime)
  const shown = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }
  if (at.getFullYear() !== year) shown.year = "numeric"
  time.textContent = at.toLocaleString(undefined, shown)
}
// In Airflow's frame.
if (parent !== window) {
  const outer = parent.document.documentElement
  const follow = () => {
    document.documentElement.style.colorScheme = outer.classList.contains("dark") ? "dark" : "light"
  }
  follow()
  new MutationObserver(follow).observe(outer, { attributeFilter: ["class"] })
  document.addEventListener("click", event => {  // the frame may neither lead elsewhere nor open a window
    const link = event.target.closest("a[target]")
    if (!link) return
    event.preventDefault()
    const { href, target, rel } = link
    Object.assign(parent.document.createElement("a"), { href, target, rel }).click()
  })
}
