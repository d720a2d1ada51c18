// The loop of an adapter in JavaScript: it reads requests, calls functions, and writes replies and events.
//
// Copy this file beside an adapter. It needs Node alone, and knows no client.
"use strict";

const readline = require("node:readline");

const SCHEMA = 1;

function write(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

// event writes an event: acknowledged, failed, record, assigned, revoked, lost, committed, log.
function event(name, client, fields) {
  write({ event: name, client, ...fields });
}

// text returns a key or value as the protocol has it.
function text(value) {
  return value === null || value === undefined ? null : value.toString();
}

// raw returns a key or value as clients take it.
function raw(value) {
  return value === null || value === undefined ? null : Buffer.from(value);
}

// Records that a client hands over by itself, until the application polls.
class Inbox {
  constructor() {
    this.waiting = [];
    this.wake = () => {};
  }

  // put waits until the application takes the entry. An entry that is an Error fails the next poll.
  put(entry) {
    return new Promise((taken) => {
      this.waiting.push({ entry, taken });
      this.wake();
    });
  }

  // take gives each entry to a function, until none has come for a moment, or none within the limit.
  async take(limitMs, use) {
    for (let waitMs = limitMs; ; waitMs = 5) {
      if (this.waiting.length === 0) {
        await new Promise((resolve) => {
          const timer = setTimeout(resolve, waitMs);
          this.wake = () => (clearTimeout(timer), resolve());
        });
      }
      const next = this.waiting.shift();
      if (next === undefined) return;
      next.taken();
      if (next.entry instanceof Error) throw next.entry;
      use(next.entry);
    }
  }
}

// serve serves requests until the input ends. operations are functions by name; each gets the request's fields and
// returns its result, or a promise of it, or nothing. failure makes an error of the protocol from an exception.
async function serve(about, operations, failure) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { op, id, ...fields } = JSON.parse(line);
    try {
      const isHello = op === "hello";
      if (!isHello && operations[op] === undefined) throw new Error(`${op} is not supported`);
      const result = isHello ? { schema: SCHEMA, language: "JavaScript", ...about } : await operations[op](fields);
      write({ id, result: result || {} });
    } catch (error) {
      write({ id, error: failure(error) });
    }
  }
  process.stdout.write("", () => process.exit(0));
}

module.exports = { Inbox, event, raw, serve, text };
