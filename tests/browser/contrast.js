// Evaluated in the page: every visible text whose colour stands out from what is behind it by less than 4.5 to 1.

(() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  // Colours painted over each other, the last one on top, as the screen shows them.
  const painted = (colours) => {
    context.clearRect(0, 0, 1, 1);
    for (const colour of colours) {
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
    }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => value / 255);
  };
  const behind = (element) => {
    const colours = [];
    for (let at = element; at; at = at.parentElement) colours.unshift(getComputedStyle(at).backgroundColor);
    return colours;
  };
  const faults = [];
  let checked = 0;
  const off = "[hidden], option, canvas, :disabled, [aria-disabled=true], #language";
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const shown = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (!(own || element.matches("select, textarea, input")) || !shown || element.closest(off)) continue;
    const under = behind(element);
    const [one, other] = [light(painted([...under, getComputedStyle(element).color])), light(painted(under))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    checked += 1;
    if (ratio < 4.5) faults.push(`${element.localName}.${element.className} ${element.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return { checked, faults };
})();
