// Voice selection of a session: a list of the server's voices, and a cloning panel if the model supports it.
//
// A `VoiceChoice` owns the list and the panel. `settings()` returns the fields for the server; `onChange` is called when the
// selection changes. If the model cannot clone, the panel only says so.

import { language, text } from "./language.js";
import { canRecord, dataUrl, decodeReference, MAX_S, record, RecordingError } from "./recording.js";
import { ServerError } from "./server.js";

const RECORDING = "recording";
const VOICE = "voice:";

export class VoiceChoice {
  // `shared`: the `SharedVoices` of the page.
  constructor(root, { server, sound, model, shared, onChange }) {
    Object.assign(this, { server, sound, model, shared, onChange });
    this.list = root.querySelector("[data-voice]");
    this.panel = root.querySelector("[data-cloning]");
    this.find = (name) => this.panel.querySelector(`[data-clone=${name}]`);
    this.recording = null;
    this.recorder = null;
    this.list.addEventListener("change", () => this.onSelect());
    this.panel.querySelector("[data-can]").hidden = !model.clones;
    this.panel.querySelector("[data-cannot]").hidden = model.clones;
    if (model.clones) this.addListeners();
    else this.panel.querySelector("[data-can]").remove();
    this.draw();
  }

  // --- selection ------------------------------------------------------------------------------------------------------

  // Fields of `session.config`; null if no voice is available.
  settings() {
    if (this.list.value === RECORDING) return { ref_audio: this.recording.url, ref_text: this.find("transcript").value.trim() };
    if (this.list.value.startsWith(VOICE)) return { voice: this.list.value.slice(VOICE.length) };
    return this.model.kind === "voice_design" ? {} : null;
  }

  get name() {
    return this.list.selectedOptions[0]?.textContent ?? "";
  }

  draw() {
    const selected = this.list.value;
    const groups = [
      [text("builtInVoices"), this.shared.builtIn.map((name) => [VOICE + name, name])],
      [text("uploadedVoices"), this.shared.uploaded.map(({ name }) => [VOICE + name, name])],
    ];
    if (this.recording) groups.push([text("cloning"), [[RECORDING, text("thisRecording")]]]);
    this.list.replaceChildren(...groups.filter(([, voices]) => voices.length).map(optionGroup));
    if (!this.list.options.length) this.list.append(new Option(this.model.kind === "voice_design" ? "–" : text("noVoice"), ""));
    if ([...this.list.options].some(({ value }) => value === selected)) this.list.value = selected;
    this.panel.querySelector("[data-cannot]").textContent = text("cannotClone", { kind: this.model.kind });
    if (this.model.clones) this.drawPanel();
  }

  onSelect() {
    if (this.model.clones) this.drawPanel();
    this.onChange();
  }

  // --- cloning panel --------------------------------------------------------------------------------------------------

  addListeners() {
    this.find("record").addEventListener("click", () => this.run(() => this.toggleRecording()));
    this.find("file").addEventListener("change", () => this.run(() => this.chooseFile()));
    this.find("play").addEventListener("click", () => this.run(() => this.play()));
    this.find("discard").addEventListener("click", () => this.discard());
    this.find("save").addEventListener("click", () => this.run(() => this.save()));
    this.find("delete").addEventListener("click", () => this.run(() => this.delete()));
    this.find("transcript").addEventListener("change", () => this.onChange());
  }

  drawPanel() {
    const uploaded = this.shared.uploaded.some(({ name }) => VOICE + name === this.list.value);
    this.find("record").textContent = text(this.recorder ? "stopRecording" : "record");
    this.find("record").disabled = !canRecord();
    this.find("record").classList.toggle("live", Boolean(this.recorder));
    this.find("result").hidden = !this.recording;
    this.find("saving").hidden = !this.recording || !this.model.keeps_voices;
    this.find("delete").hidden = !uploaded;
    if (!canRecord()) this.showStatus("cannotRecord");
  }

  // Run an action and show its error in the panel's status line.
  async run(action) {
    try {
      await action();
    } catch (error) {
      if (error instanceof RecordingError) this.showStatus(error.message);
      else if (error instanceof ServerError) this.find("status").textContent = error.message;
      else throw error;
    } finally {
      this.draw();
    }
  }

  showStatus(key, values) {
    this.find("status").textContent = text(key, values);
  }

  async toggleRecording() {
    if (this.recorder) {
      this.recorder.stop();
      return;
    }
    this.recorder = await record();
    this.drawPanel();
    const timer = setInterval(() => this.updateRecordingTime(), 250);
    try {
      await this.useRecording(await this.recorder.done);
    } finally {
      clearInterval(timer);
      this.recorder = null;
    }
  }

  updateRecordingTime() {
    const seconds = (performance.now() - this.recorder.startedMs) / 1000;
    this.showStatus("recording", { seconds: seconds.toFixed(1) });
    if (seconds >= MAX_S) this.recorder.stop();
  }

  async chooseFile() {
    const [file] = this.find("file").files;
    if (file) await this.useRecording(await file.arrayBuffer());
    this.find("file").value = "";
  }

  async useRecording(bytes) {
    const decoded = await decodeReference(bytes, this.model.sample_rate);
    this.recording = { ...decoded, url: await dataUrl(decoded.wav) };
    this.draw();
    this.list.value = RECORDING;
    const note = decoded.truncated ? ` (${text("truncatedTo", { seconds: MAX_S })})` : "";
    this.find("status").textContent = text("recorded", { seconds: decoded.seconds.toFixed(1) }) + note;
    this.onSelect();
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
    this.onSelect();
  }

  async save() {
    const name = this.find("name").value.trim();
    const voice = await this.server.uploadVoice(name, this.recording.wav, this.find("transcript").value.trim());
    this.recording = null;
    await this.shared.reload();
    this.list.value = VOICE + voice.name;
    this.showStatus("saved", { name: voice.name });
    this.onSelect();
  }

  async delete() {
    const name = this.list.value.slice(VOICE.length);
    await this.server.deleteVoice(name);
    await this.shared.reload();
    this.showStatus("deleted", { name });
    this.onSelect();
  }
}

function optionGroup([label, voices]) {
  const element = document.createElement("optgroup");
  element.label = label;
  element.append(...voices.map(([value, name]) => new Option(name, value)));
  return element;
}

// The built-in and uploaded voices, shared by all sessions of the page.
export class SharedVoices {
  constructor(server) {
    this.server = server;
    this.builtIn = [];
    this.uploaded = [];
    this.onChange = () => {};
  }

  async reload() {
    const { voices, uploaded_voices: uploaded } = await this.server.voices();
    const names = new Set(uploaded.map(({ name }) => name));
    this.uploaded = uploaded;
    this.builtIn = voices.filter((name) => !names.has(name)).sort((one, other) => one.localeCompare(other, language()));
    this.onChange();
  }
}
