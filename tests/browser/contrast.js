// Evaluated in the page: finds every visible text with a contrast below 4.5:1 to its background (WCAG AA).

(() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  // Blend colours as the screen does, the last one on top.
  const blend = (colours) => {
    context.clearRect(0, 0, 1, 1);
    for (const colour of colours) {
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
    }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => value / 255);
  };
  const backgroundsOf = (element) => {
    const colours = [];
    for (let node = element; node; node = node.parentElement) colours.unshift(getComputedStyle(node).backgroundColor);
    return colours;
  };
  const faults = [];
  let checked = 0;
  const ignored = "[hidden], option, canvas, :disabled, [aria-disabled=true], #language";
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const visible = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (!(hasText || element.matches("select, textarea, input")) || !visible || element.closest(ignored)) continue;
    const backgrounds = backgroundsOf(element);
    const [foreground, background] = [luminance(blend([...backgrounds, getComputedStyle(element).color])), luminance(blend(backgrounds))];
    const ratio = (Math.max(foreground, background) + 0.05) / (Math.min(foreground, background) + 0.05);
    checked += 1;
    if (ratio < 4.5) faults.push(`${element.localName}.${element.className} ${element.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return { checked, faults };
})();
