// Shared canvas setup: device resolution, theme colours, and the reduced-motion preference.
//
// Colours are registered properties (`@property` in `style.css`), so that their computed values are plain colours in every
// theme.

const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

export function prefersReducedMotion() {
  return reducedMotion.matches;
}

// Clear and scale the canvas: `context` draws in CSS pixels of `width` x `height`.
export function prepareCanvas(canvas) {
  const scale = globalThis.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height, colour: themeColours(canvas) };
}

function themeColours(canvas) {
  const style = getComputedStyle(canvas);
  return (name) => style.getPropertyValue(`--${name}`);
}
