// What the drawings have in common: a canvas as sharp as the screen, the colours of the theme, and the wish for calm.
//
// Colours are registered properties (`@property` in `style.css`), so that their computed values are plain colours whatever
// the theme. Knows no sound.

const still = matchMedia("(prefers-reduced-motion: reduce)");

export function calm() {
  return still.matches;
}

// The canvas cleared and scaled: `context` draws in CSS pixels of `width` x `height`.
export function prepare(canvas) {
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
  return { context, width, height, colour: colours(canvas) };
}

function colours(canvas) {
  const style = getComputedStyle(canvas);
  return (name) => style.getPropertyValue(`--${name}`);
}
