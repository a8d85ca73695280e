// The settings panel of a session: language, speed, instructions, seed, packet size and start buffer.
//
// A `Settings` owns the fields of the panel and shows only those that the loaded model supports. `values()` returns the
// fields for the server; defaults are omitted.

import { text } from "./language.js";

export class Settings {
  constructor(root, model, onChange) {
    this.model = model;
    this.panel = root.querySelector("[data-settings]");
    this.field = (name) => this.panel.querySelector(`[name=${name}]`);
    this.show("language", model.languages.length > 2);
    this.show("speed", model.speed);
    this.show("instructions", model.instructions || model.kind === "voice_design");
    this.panel.addEventListener("input", () => {
      this.draw();
      onChange();
    });
    this.draw();
  }

  draw() {
    const languages = this.field("language");
    const selected = languages.value || "auto";
    languages.replaceChildren(
      ...this.model.languages.map((name) => new Option(name === "auto" ? text("auto") : name, name)),
    );
    languages.value = selected;
    this.panel.querySelector("[data-speed]").textContent = `${Number(this.field("speed").value).toFixed(2)}×`;
    this.panel.querySelector("[data-instructions]").textContent = text(
      this.model.kind === "voice_design" ? "voiceDescription" : "instructions",
    );
    this.field("instructions").placeholder = text("instructionsHint");
    for (const option of this.field("packet").options) option.textContent = `${option.value * this.model.frame_ms} ms`;
    for (const option of this.field("startBuffer").options) option.textContent = `${option.value} ms`;
  }

  // Fields of `session.config`.
  values() {
    const values = { first_packet_frames: Number(this.field("packet").value), word_timestamps: this.model.word_times };
    const seed = Number.parseInt(this.field("seed").value, 10);
    const speed = Number(this.field("speed").value);
    const instructions = this.field("instructions").value.trim();
    if (this.field("language").value !== "auto") values.language = this.field("language").value;
    if (Number.isSafeInteger(seed) && seed >= 0) values.seed = seed;
    if (this.model.speed && speed !== 1) values.speed = speed;
    if (instructions) values.instructions = instructions;
    return { ...values, start_ms: this.startMs };
  }

  get startMs() {
    return Number(this.field("startBuffer").value);
  }

  show(name, visible) {
    this.field(name).closest("label").hidden = !visible;
  }
}
