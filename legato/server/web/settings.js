// How a session speaks, beside its voice: language, speed, instructions, seed, and how its sound is packed.
//
// A `Settings` owns the fields of one session's panel. Only what the loaded model can do is offered. `values()` is what
// the server is told; what was left alone is not in it.

import { text } from "./language.js";

export class Settings {
  constructor(root, model, changed) {
    this.model = model;
    this.panel = root.querySelector("[data-settings]");
    this.field = (name) => this.panel.querySelector(`[name=${name}]`);
    this.offer("language", model.languages.length > 2);
    this.offer("speed", model.speed);
    this.offer("instructions", model.instructions || model.kind === "voice_design");
    this.panel.addEventListener("input", () => {
      this.draw();
      changed();
    });
    this.draw();
  }

  draw() {
    const names = this.field("language");
    const wanted = names.value || "auto";
    names.replaceChildren(
      ...this.model.languages.map((name) => new Option(name === "auto" ? text("auto") : name, name)),
    );
    names.value = wanted;
    this.panel.querySelector("[data-speed]").textContent = `${Number(this.field("speed").value).toFixed(2)}×`;
    this.panel.querySelector("[data-instructions]").textContent = text(
      this.model.kind === "voice_design" ? "design" : "instructions",
    );
    this.field("instructions").placeholder = text("instructionsHint");
    for (const option of this.field("packet").options) option.textContent = `${option.value * this.model.frame_ms} ms`;
    for (const option of this.field("collect").options) option.textContent = `${option.value} ms`;
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
    return Number(this.field("collect").value);
  }

  offer(name, offered) {
    this.field(name).closest("label").hidden = !offered;
  }
}
