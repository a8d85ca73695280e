// Who speaks: the voices of the server in a list, and, where the loaded model clones, a recording of the user's own.
//
// A `VoiceChoice` owns the list and the panel of one session. `settings()` is what the server is told. Where the model
// cannot clone, the panel says so and holds nothing else. `changed` is called when the choice is another.

import { language, text } from "./language.js";
import { canRecord, dataUrl, MOST_S, record, RecordingError, reference } from "./recording.js";
import { ServerError } from "./server.js";

const RECORDING = "recording";
const VOICE = "voice:";

export class VoiceChoice {
  // `shared` holds the page's `voices` (names, kept ones) and reloads them for every session.
  constructor(root, { server, sound, model, shared, changed }) {
    Object.assign(this, { server, sound, model, shared, changed });
    this.list = root.querySelector("[data-voice]");
    this.panel = root.querySelector("[data-cloning]");
    this.find = (name) => this.panel.querySelector(`[data-clone=${name}]`);
    this.recording = null;
    this.running = null;
    this.list.addEventListener("change", () => this.chosen());
    this.panel.querySelector("[data-can]").hidden = !model.clones;
    this.panel.querySelector("[data-cannot]").hidden = model.clones;
    if (model.clones) this.listen();
    else this.panel.querySelector("[data-can]").remove();
    this.draw();
  }

  // --- what is chosen -------------------------------------------------------------------------------------------------

  // Fields of `session.config`; null while there is no voice at all.
  settings() {
    if (this.list.value === RECORDING) return { ref_audio: this.recording.url, ref_text: this.find("transcript").value.trim() };
    if (this.list.value.startsWith(VOICE)) return { voice: this.list.value.slice(VOICE.length) };
    return this.model.kind === "voice_design" ? {} : null;
  }

  get name() {
    return this.list.selectedOptions[0]?.textContent ?? "";
  }

  draw() {
    const wanted = this.list.value;
    const groups = [
      [text("ownVoices"), this.shared.own.map((name) => [VOICE + name, name])],
      [text("keptVoices"), this.shared.kept.map(({ name }) => [VOICE + name, name])],
    ];
    if (this.recording) groups.push([text("cloning"), [[RECORDING, text("thisRecording")]]]);
    this.list.replaceChildren(...groups.filter(([, voices]) => voices.length).map(group));
    if (!this.list.options.length) this.list.append(new Option(this.model.kind === "voice_design" ? "–" : text("noVoice"), ""));
    if ([...this.list.options].some(({ value }) => value === wanted)) this.list.value = wanted;
    this.panel.querySelector("[data-cannot]").textContent = text("cannotClone", { kind: this.model.kind });
    if (this.model.clones) this.drawPanel();
  }

  chosen() {
    if (this.model.clones) this.drawPanel();
    this.changed();
  }

  // --- the panel ------------------------------------------------------------------------------------------------------

  listen() {
    this.find("record").addEventListener("click", () => this.guard(() => this.toggleRecording()));
    this.find("file").addEventListener("change", () => this.guard(() => this.chooseFile()));
    this.find("listen").addEventListener("click", () => this.guard(() => this.play()));
    this.find("discard").addEventListener("click", () => this.discard());
    this.find("keep").addEventListener("click", () => this.guard(() => this.keep()));
    this.find("forget").addEventListener("click", () => this.guard(() => this.forget()));
    this.find("transcript").addEventListener("change", () => this.changed());
  }

  drawPanel() {
    const kept = this.shared.kept.some(({ name }) => VOICE + name === this.list.value);
    this.find("record").textContent = text(this.running ? "endRecording" : "record");
    this.find("record").disabled = !canRecord();
    this.find("record").classList.toggle("live", Boolean(this.running));
    this.find("made").hidden = !this.recording;
    this.find("keeping").hidden = !this.recording || !this.model.keeps_voices;
    this.find("forget").hidden = !kept;
    if (!canRecord()) this.say("cannotRecord");
  }

  // Faults of recordings and refusals of the server are told where they happened.
  async guard(work) {
    try {
      await work();
    } catch (error) {
      if (error instanceof RecordingError) this.say(error.message);
      else if (error instanceof ServerError) this.find("status").textContent = error.message;
      else throw error;
    } finally {
      this.draw();
    }
  }

  say(key, values) {
    this.find("status").textContent = text(key, values);
  }

  async toggleRecording() {
    if (this.running) {
      this.running.stop();
      return;
    }
    this.running = await record();
    this.drawPanel();
    const ticking = setInterval(() => this.tick(), 250);
    try {
      await this.take(await this.running.done);
    } finally {
      clearInterval(ticking);
      this.running = null;
    }
  }

  tick() {
    const seconds = (performance.now() - this.running.startedMs) / 1000;
    this.say("recording", { seconds: seconds.toFixed(1) });
    if (seconds >= MOST_S) this.running.stop();
  }

  async chooseFile() {
    const [file] = this.find("file").files;
    if (file) await this.take(await file.arrayBuffer());
    this.find("file").value = "";
  }

  async take(bytes) {
    const made = await reference(bytes, this.model.sample_rate);
    this.recording = { ...made, url: await dataUrl(made.wav) };
    this.draw();
    this.list.value = RECORDING;
    const note = made.cut ? ` (${text("cutTo", { seconds: MOST_S })})` : "";
    this.find("status").textContent = text("recorded", { seconds: made.seconds.toFixed(1) }) + note;
    this.chosen();
  }

  async play() {
    const context = await this.sound.context();
    const buffer = context.createBuffer(1, this.recording.samples.length, this.model.sample_rate);
    buffer.copyToChannel(this.recording.samples, 0);
    const source = new AudioBufferSourceNode(context, { buffer });
    source.connect(context.destination);
    source.start();
  }

  discard() {
    this.recording = null;
    this.find("status").textContent = "";
    this.draw();
    this.chosen();
  }

  async keep() {
    const name = this.find("name").value.trim();
    const kept = await this.server.keepVoice(name, this.recording.wav, this.find("transcript").value.trim());
    this.recording = null;
    await this.shared.reload();
    this.list.value = VOICE + kept.name;
    this.say("kept", { name: kept.name });
    this.chosen();
  }

  async forget() {
    const name = this.list.value.slice(VOICE.length);
    await this.server.forgetVoice(name);
    await this.shared.reload();
    this.say("forgotten", { name });
    this.chosen();
  }
}

function group([label, voices]) {
  const element = document.createElement("optgroup");
  element.label = label;
  element.append(...voices.map(([value, name]) => new Option(name, value)));
  return element;
}

// Kept voices and the model's own, for all sessions of the page.
export class SharedVoices {
  constructor(server) {
    this.server = server;
    this.own = [];
    this.kept = [];
    this.changed = () => {};
  }

  async reload() {
    const { voices, uploaded_voices: kept } = await this.server.voices();
    const names = new Set(kept.map(({ name }) => name));
    this.kept = kept;
    this.own = voices.filter((name) => !names.has(name)).sort((one, other) => one.localeCompare(other, language()));
    this.changed();
  }
}
