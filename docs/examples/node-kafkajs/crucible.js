// A cluster for one test: crucible serve, and its control API.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

export class Crucible {
  /** Start crucible serve. The pipe to its stdin ends it even if this process is killed. */
  static async start(...words) {
    const process = spawn("crucible", ["serve", ...words], { stdio: ["pipe", "pipe", "inherit"] });
    const [line] = await Promise.race([
      once(createInterface({ input: process.stdout }), "line"),
      once(process, "exit").then(() => Promise.reject(new Error("crucible serve has ended"))),
    ]);
    return new Crucible(process, JSON.parse(line));
  }

  constructor(process, ready) {
    this.process = process;
    this.bootstrapServers = ready.bootstrap_servers.split(",");
    this.control = ready.control;
    this.token = ready.token;
  }

  /** Send a request to the control API, and return what it responds. A refusal is an error with its sentence. */
  async call(method, path, body) {
    const response = await fetch(this.control + path, {
      method,
      headers: { authorization: `Bearer ${this.token}` },
      body: body && JSON.stringify(body),
    });
    const result = await response.json();
    if (!response.ok) throw new Error(result.error);
    return result;
  }

  /** Fail if a rule never fired, and end the cluster. */
  async stop() {
    try {
      await this.call("POST", "/v1/rules/check");
    } finally {
      this.process.kill("SIGTERM");
      await once(this.process, "exit");
    }
  }
}
