// Adapter of @platformatic/kafka, a Kafka client in JavaScript.
"use strict";

const { Admin, Consumer, Producer, FetchIsolationLevels } = require("@platformatic/kafka");
const { version } = require(require.resolve("@platformatic/kafka").replace("dist/index.js", "package.json"));
const { Inbox, event, raw, serve, text } = require("../javascript/adapter_loop.js");

const FEATURES = ["producer", "idempotence", "transactions", "consumer", "groups", "static-membership", "rack", "admin", "gzip", "snappy", "lz4", "zstd"];
const ACKS = { all: -1, 1: 1, 0: 0 };
const ROLES = { producer: Producer, admin: Admin };

// Where each portable setting goes: the object of options, and its name there.
const SETTINGS = {
  request_timeout_ms: ["base", "requestTimeout"],
  retry_backoff_ms: ["base", "retryDelay"],
  metadata_max_age_ms: ["base", "metadataMaxAge"],
  rack: ["base", "clientRack"],
  in_flight: ["base", "maxInflights"],
  acks: ["producer", "acks", (value) => ACKS[value]],
  idempotence: ["producer", "idempotent"],
  transactional_id: ["producer", "transactionalId"],
  compression: ["producer", "compression"],
  group: ["consumer", "groupId"],
  instance: ["consumer", "groupInstanceId"],
  session_timeout_ms: ["consumer", "sessionTimeout"],
  heartbeat_interval_ms: ["consumer", "heartbeatInterval"],
  isolation: ["consumer", "isolationLevel", (value) => FetchIsolationLevels[value.toUpperCase()]],
  reset: ["stream", "fallbackMode", (value) => (value === "none" ? "fail" : value)],
  auto_commit: ["stream", "autocommit"],
  fetch_max_wait_ms: ["consumer", "maxWaitTime"],
  fetch_min_bytes: ["consumer", "minBytes"],
  fetch_max_bytes: ["consumer", "maxBytes"],
  partition_max_bytes: ["consumer", "maxBytesPerPartition"],
};

const clients = {};

async function open({ client, role, bootstrap, client_id, settings }) {
  const own = { base: {}, producer: {}, consumer: {}, stream: {} };
  for (const [name, value] of Object.entries(settings)) {
    if (!(name in SETTINGS)) continue;
    const [where, option, convert] = SETTINGS[name];
    own[where][option] = convert ? convert(value) : value;
  }
  const timeout = own.base.requestTimeout;
  Object.assign(own.base, { clientId: client_id, bootstrapBrokers: bootstrap.split(","), connectTimeout: timeout, timeout });
  const c = { name: client, own, inbox: new Inbox(), last: Promise.resolve(), assigned: [], next: new Map() };
  clients[client] = c;
  if (own.producer.transactionalId) own.producer.idempotent = true;
  if (role in ROLES) c.client = new ROLES[role]({ ...own.base, ...own.producer });
  if (own.producer.transactionalId) c.begun = await c.client.beginTransaction(); // The client initialises it only here.
  return { ignored: Object.keys(settings).filter((name) => !(name in SETTINGS)) };
}

// Producing

// send sends a record when the one before has its outcome, which is how an application keeps their order.
function send({ client, record, topic, partition, key, value, headers }) {
  const c = clients[client];
  const message = { topic, key: raw(key) || undefined, value: raw(value), headers: new Map() };
  for (const [name, content] of headers || []) message.headers.set(raw(name), raw(content));
  if (typeof partition === "number") message.partition = partition;
  c.last = c.last.then(async () => {
    try {
      const { offsets } = await (c.transaction || c.client).send({ messages: [message], acks: c.own.producer.acks });
      const written = (offsets && offsets[0]) || { partition: partition || 0, offset: -1 };
      event("acknowledged", client, { record, partition: written.partition, offset: Number(written.offset) });
    } catch (error) {
      c.failed = c.failed || error;
      event("failed", client, { record, error: failure(error) });
    }
  });
}

async function flush({ client, timeout_ms }) {
  let timer;
  const limit = new Promise((resolve) => (timer = setTimeout(resolve, timeout_ms)));
  await Promise.race([clients[client].last, limit]);
  clearTimeout(timer);
}

async function begin({ client }) {
  const c = clients[client];
  c.transaction = c.begun || (await c.client.beginTransaction());
  c.begun = c.failed = undefined;
}

// endTransaction commits only if no record has failed: the promise of send is what reports it.
async function endTransaction(client, how) {
  const c = clients[client];
  await c.last;
  if (how === "commit" && c.failed) throw c.failed;
  await c.transaction[how]();
  c.transaction = undefined;
}

// Consuming

const placeOf = ({ topic, partition }) => `${topic}-${partition}`;

// consume starts a stream. It ends with an error, after which the application consumes again from where it was.
async function consume(c) {
  if (!c.client) {
    c.own.consumer.groupId = c.own.consumer.groupId || `${c.name}-${process.pid}`; // The client demands a group.
    const rebalanceTimeout = c.own.consumer.sessionTimeout;
    c.client = new Consumer({ ...c.own.base, rebalanceTimeout, ...c.own.consumer });
    c.client.on("consumer:group:join", ({ assignments }) => {
      const places = (assignments || []).flatMap(({ topic, partitions }) => partitions.map((partition) => ({ topic, partition })));
      if (c.assigned.length > 0) event("revoked", c.name, { partitions: c.assigned });
      event("assigned", c.name, { partitions: places });
      c.assigned = places;
    });
  }
  const options = { topics: c.topics, mode: "committed", ...c.own.stream };
  if (c.from) {
    options.autocommit = false;
    options.mode = c.from.some(({ offset }) => typeof offset === "number") ? "manual" : options.fallbackMode;
    if (options.mode === "manual") options.offsets = c.from.map((each) => ({ ...each, offset: BigInt(each.offset || 0) }));
  }
  c.stream = await c.client.consume(options);
  read(c, c.stream);
}

async function read(c, stream) {
  try {
    for await (const message of stream) await c.inbox.put(message);
  } catch (error) {
    if (c.stream === stream) {
      c.stream = undefined;
      c.inbox.put(error);
    }
  }
}

async function subscribe({ client, topics }) {
  clients[client].topics = topics;
  await consume(clients[client]);
}

async function assign({ client, partitions }) {
  clients[client].topics = [...new Set(partitions.map(({ topic }) => topic))];
  clients[client].from = partitions.map(({ topic, partition, offset }) => ({ topic, partition, offset }));
  await consume(clients[client]);
}

// seek ends the stream, and starts another one at the offset.
async function seek({ client, partition: { topic, partition, offset } }) {
  const c = clients[client];
  const stream = c.stream;
  c.stream = undefined;
  for (const { taken } of c.inbox.waiting.splice(0)) taken();
  if (stream) await stream.close();
  for (const { taken } of c.inbox.waiting.splice(0)) taken();
  c.from = c.from.map((each) => (placeOf(each) === placeOf({ topic, partition }) ? { topic, partition, offset } : each));
  await consume(c);
}

async function poll({ client, timeout_ms }) {
  const c = clients[client];
  if (!c.stream && c.topics && c.inbox.waiting.length === 0) await consume(c);
  await c.inbox.take(timeout_ms, (message) => {
    const { topic, partition, key, value } = message;
    if (c.from && !c.from.some((each) => placeOf(each) === placeOf(message))) return;
    const offset = Number(message.offset);
    const headers = [...message.headers].map(([name, content]) => [text(name), text(content)]);
    c.next.set(placeOf(message), { topic, partition, offset: offset + 1, leaderEpoch: message.leaderEpoch });
    if (c.from) c.from = c.from.map((each) => (placeOf(each) === placeOf(message) ? { topic, partition, offset: offset + 1 } : each));
    event("record", client, { topic, partition, offset, key: text(key), value: text(value), headers });
  });
}

async function commit({ client, offsets }) {
  const c = clients[client];
  const places = (offsets || [...c.next.values()]).map(({ topic, partition, offset, leaderEpoch, leader_epoch }) =>
    ({ topic, partition, offset: BigInt(offset), leaderEpoch: leaderEpoch ?? leader_epoch ?? -1 }));
  if (places.length > 0) await c.client.commit({ offsets: places });
}

async function committed({ client, partitions }) {
  const topics = partitions.map(({ topic, partition }) => ({ topic, partitions: [partition] }));
  const found = await clients[client].client.listCommittedOffsets({ topics });
  const offsetOf = ({ topic, partition }) => Number((found.get(topic) || [])[partition] ?? (found.get(topic) || [])[0] ?? -1);
  return { partitions: partitions.map((each) => ({ ...each, offset: offsetOf(each) })).filter(({ offset }) => offset >= 0) };
}

function position({ client, partitions }) {
  const { next } = clients[client];
  return { partitions: partitions.map((each) => ({ ...each, offset: (next.get(placeOf(each)) || each).offset })) };
}

async function createTopic({ client, topic, partitions }) {
  await clients[client].client.createTopics({ topics: [topic], partitions: partitions || 1, replicas: 1 });
}

async function close({ client }) {
  const c = clients[client];
  delete clients[client];
  c.stream = undefined;
  for (const { taken } of c.inbox.waiting.splice(0)) taken();
  c.inbox.put = () => Promise.resolve();
  if (c.client) await c.client.close(true);
}

// failure finds the first error of the protocol in an error that has several.
function failure(error) {
  const all = [error];
  for (const each of all) all.push(...(each.errors || []), ...(each.cause ? [each.cause] : []));
  const known = all.find((each) => each.apiId);
  const isLate = all.some((each) => each.code === "PLT_KFK_TIMEOUT");
  const name = known ? known.apiId : isLate ? "REQUEST_TIMED_OUT" : error.code || error.name;
  return { name, message: `${error.message}`, retriable: known ? Boolean(known.canRetry) : isLate, fatal: false };
}

serve({ name: "@platformatic/kafka", version, features: FEATURES }, {
  open, send, flush, begin, subscribe, assign, seek, poll, commit, committed, position, close,
  commit_transaction: ({ client }) => endTransaction(client, "commit"),
  abort_transaction: ({ client }) => endTransaction(client, "abort"),
  create_topic: createTopic,
}, failure);
