// Injected before the page's scripts: connects a recording tap to every audio worklet node that is connected to the
// destination. The page's own code is unchanged.

const taps = (globalThis.taps = []);
const { addModule } = AudioWorklet.prototype;
const { connect } = AudioNode.prototype;

AudioWorklet.prototype.addModule = async function (...args) {
  await addModule.call(this, "/web/tap-worklet.js");
  return addModule.apply(this, args);
};

AudioNode.prototype.connect = function (target, ...rest) {
  if (this instanceof AudioWorkletNode && target instanceof AudioDestinationNode) {
    const tap = new AudioWorkletNode(this.context, "tap", { numberOfOutputs: 0 });
    const recorded = { frames: [], clockMs: [], samples: [] };
    tap.port.onmessage = ({ data }) => {
      recorded.frames.push(data.frame);
      recorded.clockMs.push(data.clockMs);
      recorded.samples.push(data.samples);
    };
    taps.push(recorded);
    connect.call(this, tap);
  }
  return connect.call(this, target, ...rest);
};

// Output of session `index`: base64 of its float32 samples, with frame number and wall clock of each render quantum.
globalThis.tapped = (index) => {
  const { frames, clockMs, samples } = taps[index];
  const bytes = new Uint8Array(samples.length * 512);
  samples.forEach((quantum, index) => bytes.set(new Uint8Array(quantum.buffer), index * 512));
  let text = "";
  for (let start = 0; start < bytes.length; start += 8192) text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  return { frames, clockMs, samples: btoa(text) };
};
