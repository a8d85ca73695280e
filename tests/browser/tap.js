// Put into the page before its own scripts: everything that an audio worklet node hands to the loudspeaker is also handed
// to a tap, which notes it. The page is not changed and does not know.

const taps = (globalThis.taps = []);
const { addModule } = AudioWorklet.prototype;
const { connect } = AudioNode.prototype;

AudioWorklet.prototype.addModule = async function (...given) {
  await addModule.call(this, "/web/tap-worklet.js");
  return addModule.apply(this, given);
};

AudioNode.prototype.connect = function (target, ...rest) {
  if (this instanceof AudioWorkletNode && target instanceof AudioDestinationNode) {
    const tap = new AudioWorkletNode(this.context, "tap", { numberOfOutputs: 0 });
    const heard = { frames: [], clockMs: [], samples: [] };
    tap.port.onmessage = ({ data }) => {
      heard.frames.push(data.frame);
      heard.clockMs.push(data.clockMs);
      heard.samples.push(data.samples);
    };
    taps.push(heard);
    connect.call(this, tap);
  }
  return connect.call(this, target, ...rest);
};

// What went to the loudspeaker of the session `index`: base64 of its float32 samples, and the quanta that they came in.
globalThis.tapped = (index) => {
  const { frames, clockMs, samples } = taps[index];
  const bytes = new Uint8Array(samples.length * 512);
  samples.forEach((quantum, at) => bytes.set(new Uint8Array(quantum.buffer), at * 512));
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return { frames, clockMs, samples: btoa(text) };
};
