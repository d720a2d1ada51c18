#!/usr/bin/env node
// A template of an adapter in JavaScript: replace each TODO by what an application of your client would write.
//
//     ./crucible client ./template.js --section ordinary
//
// Copy it together with adapter_loop.js. The operations that your client lacks may be removed; list only features that
// it has.
"use strict";

const { Inbox, event, raw, serve, text } = require("./adapter_loop.js");

const clients = {};

// open makes a producer or a consumer. settings are the portable ones of docs/client-adapters.md.
async function open({ client, role, bootstrap, client_id, settings }) {
  const names = { request_timeout_ms: "TODO", reset: "TODO" }; // The client's own name of each setting.
  const known = Object.entries(settings).filter(([name]) => name in names);
  const own = Object.fromEntries(known.map(([name, value]) => [names[name], value]));
  clients[client] = { role, brokers: bootstrap.split(","), client_id, own, inbox: new Inbox() }; // TODO
  return { ignored: Object.keys(settings).filter((name) => !(name in names)) };
}

// send sends one record, and reports its outcome when it is known.
function send({ client, record, topic, partition, value }) {
  clients[client].send(topic, partition, raw(value)).then( // TODO
    (written) => event("acknowledged", client, { record, partition: written.partition, offset: Number(written.offset) }),
    (error) => event("failed", client, { record, error: failure(error) }),
  );
}

async function assign({ client, partitions }) {
  await clients[client].read(partitions, (message) => clients[client].inbox.put(message)); // TODO
}

// poll returns as soon as there are records. They are events, before the reply.
async function poll({ client, timeout_ms }) {
  await clients[client].inbox.take(timeout_ms, (message) => {
    const { topic, partition, offset, key, value } = message; // TODO
    event("record", client, { topic, partition, offset: Number(offset), key: text(key), value: text(value) });
  });
}

async function close({ client }) {
  await clients[client].disconnect(); // TODO
  delete clients[client];
}

// failure has Kafka's name of an error if the client has it, and how the client classifies it.
function failure(error) {
  return { name: error.name, message: error.message, retriable: null, fatal: null };
}

serve({ name: "my-client", version: "1.0", features: ["producer", "consumer"] }, { open, send, assign, poll, close }, failure);
