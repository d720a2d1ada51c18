// Adapter of kafkajs, a Kafka client in JavaScript.
"use strict";

const { CompressionCodecs, CompressionTypes, Kafka } = require("kafkajs");
const { version } = require("kafkajs/package.json");
const { Inbox, event, raw, serve, text } = require("../javascript/adapter_loop.js");

CompressionCodecs[CompressionTypes.Snappy] = require("kafkajs-snappy");

const FEATURES = ["producer", "idempotence", "transactions", "send-offsets", "consumer", "groups", "pause", "rack", "admin", "gzip", "snappy"];
const ACKS = { all: -1, 1: 1, 0: 0 };
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy };

// Where each portable setting goes: the object of options, and its name there.
const SETTINGS = {
  request_timeout_ms: ["kafka", "requestTimeout"],
  retry_backoff_ms: ["retry", "initialRetryTime"],
  metadata_max_age_ms: ["client", "metadataMaxAge"],
  rack: ["client", "rackId"],
  acks: ["send", "acks", (value) => ACKS[value]],
  compression: ["send", "compression", (value) => CODECS[value]],
  idempotence: ["client", "idempotent"],
  transactional_id: ["client", "transactionalId"],
  transaction_timeout_ms: ["client", "transactionTimeout"],
  in_flight: ["client", "maxInFlightRequests"],
  group: ["client", "groupId"],
  session_timeout_ms: ["client", "sessionTimeout"],
  heartbeat_interval_ms: ["client", "heartbeatInterval"],
  isolation: ["client", "readUncommitted", (value) => value === "read_uncommitted"],
  reset: ["subscribe", "fromBeginning", (value) => value === "earliest"],
  auto_commit: ["run", "autoCommit"],
  auto_commit_interval_ms: ["run", "autoCommitInterval"],
  fetch_max_wait_ms: ["client", "maxWaitTimeInMs"],
  fetch_min_bytes: ["client", "minBytes"],
  fetch_max_bytes: ["client", "maxBytes"],
  partition_max_bytes: ["client", "maxBytesPerPartition"],
};

const clients = {};

async function open({ client, role, bootstrap, client_id, settings }) {
  const own = { kafka: {}, retry: {}, client: {}, send: {}, subscribe: {}, run: {} };
  for (const [name, value] of Object.entries(settings)) {
    if (!(name in SETTINGS)) continue;
    const [where, option, convert] = SETTINGS[name];
    own[where][option] = convert ? convert(value) : value;
  }
  const kafka = new Kafka({ clientId: client_id, brokers: bootstrap.split(","), retry: own.retry, logLevel: 0, ...own.kafka,
    connectionTimeout: own.kafka.requestTimeout });
  const c = { name: client, kafka, own, inbox: new Inbox(), assigned: [], read: new Map(), last: Promise.resolve(), sent: [] };
  clients[client] = c;
  if (role === "producer") {
    if (own.client.idempotent || own.client.transactionalId) own.client.maxInFlightRequests = 1; // As kafkajs advises.
    own.client.idempotent = own.client.idempotent || own.client.transactionalId !== undefined;
    c.producer = kafka.producer({ allowAutoTopicCreation: false, ...own.client });
    await c.producer.connect();
    if (own.client.transactionalId) c.begun = await c.producer.transaction(); // kafkajs initialises it only here.
  }
  const lacks = ([name, value]) => !(name in SETTINGS) || (name === "reset" && value === "none");
  return { ignored: Object.entries(settings).filter(lacks).map(([name]) => name) };
}

// Producing

// send sends a record when the one before has its outcome, which is how an application keeps their order.
function send({ client, record, topic, partition, key, value, headers }) {
  const c = clients[client];
  const message = { key: raw(key), value: raw(value), headers: Object.fromEntries(headers || []) };
  if (typeof partition === "number") message.partition = partition;
  c.last = c.last.then(async () => {
    try {
      const [written] = await (c.transaction || c.producer).send({ topic, messages: [message], ...c.own.send });
      const offset = written && written.baseOffset !== undefined ? Number(written.baseOffset) : -1;
      event("acknowledged", client, { record, partition: written ? written.partition : partition || 0, offset });
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
  c.transaction = c.begun || (await c.producer.transaction());
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

async function sendOffsets({ client, consumer, offsets }) {
  const topics = offsets.map(({ topic, partition, offset }) => ({ topic, partitions: [{ partition, offset: `${offset}` }] }));
  await clients[client].transaction.sendOffsets({ consumerGroupId: clients[consumer].own.client.groupId, topics });
}

// Consuming

async function consume(c, topics) {
  c.consumer = c.kafka.consumer({ allowAutoTopicCreation: false, ...c.own.client });
  c.consumer.on("consumer.group_join", ({ payload }) => {
    c.assigned = placesOf(payload.memberAssignment);
    event("assigned", c.name, { partitions: c.assigned });
  });
  c.consumer.on("consumer.rebalancing", () => {
    event("revoked", c.name, { partitions: c.assigned });
    c.assigned = [];
  });
  c.consumer.on("consumer.crash", ({ payload }) => {
    const error = payload.error;
    error.isFinal = !payload.restart;
    c.inbox.put(error);
  });
  await c.consumer.connect();
  await c.consumer.subscribe({ topics, ...c.own.subscribe });
  await c.consumer.run({ ...c.own.run, eachMessage: (payload) => c.inbox.put(payload) });
}

function placesOf(assignment) {
  return Object.entries(assignment).flatMap(([topic, partitions]) => partitions.map((partition) => ({ topic, partition })));
}

async function subscribe({ client, topics }) {
  await consume(clients[client], topics);
}

// assign reads partitions without a group of the application. kafkajs demands a group, so there is one for this client
// alone. After an error kafkajs reads on from what is committed, so it commits.
async function assign({ client, partitions }) {
  const c = clients[client];
  c.own.run.autoCommit = true;
  c.own.client.groupId = c.own.client.groupId || `${client}-${process.pid}`;
  c.only = new Set(partitions.map(({ topic, partition }) => `${topic}-${partition}`));
  await consume(c, [...new Set(partitions.map(({ topic }) => topic))]);
  for (const { topic, partition, offset } of partitions) {
    if (typeof offset === "number") c.consumer.seek({ topic, partition, offset: `${offset}` });
  }
}

async function poll({ client, timeout_ms }) {
  const c = clients[client];
  await c.inbox.take(timeout_ms, ({ topic, partition, message }) => {
    if (c.only && !c.only.has(`${topic}-${partition}`)) return;
    const offset = Number(message.offset);
    const headers = Object.entries(message.headers || {}).map(([name, value]) => [name, text(value)]);
    c.read.set(`${topic}-${partition}`, { topic, partition, offset: offset + 1 });
    event("record", client, { topic, partition, offset, key: text(message.key), value: text(message.value), headers });
  });
}

async function commit({ client, offsets }) {
  const c = clients[client];
  const places = offsets || [...c.read.values()];
  await c.consumer.commitOffsets(places.map((each) => ({ ...each, offset: `${each.offset}` })));
}

async function committed({ client, partitions }) {
  const c = clients[client];
  const topics = [...new Set(partitions.map(({ topic }) => topic))];
  const found = await withAdmin(c, (admin) => admin.fetchOffsets({ groupId: c.own.client.groupId, topics }));
  const offsets = found.flatMap(({ topic, partitions: each }) => each.map((one) => ({ topic, ...one, offset: Number(one.offset) })));
  const wanted = new Set(partitions.map(({ topic, partition }) => `${topic}-${partition}`));
  return { partitions: offsets.filter((each) => each.offset >= 0 && wanted.has(`${each.topic}-${each.partition}`))
    .map(({ topic, partition, offset }) => ({ topic, partition, offset })) };
}

function position({ client, partitions }) {
  const read = clients[client].read;
  return { partitions: partitions.map((each) => read.get(`${each.topic}-${each.partition}`) || each) };
}

function seek({ client, partition: { topic, partition, offset } }) {
  clients[client].consumer.seek({ topic, partition, offset: `${offset}` });
}

function pauses(how) {
  return ({ client, partitions }) =>
    clients[client].consumer[how](partitions.map(({ topic, partition }) => ({ topic, partitions: [partition] })));
}

async function withAdmin(c, work) {
  const admin = c.kafka.admin();
  await admin.connect();
  try {
    return await work(admin);
  } finally {
    await admin.disconnect();
  }
}

async function createTopic({ client, topic, partitions }) {
  const topics = [{ topic, numPartitions: partitions || 1, replicationFactor: 1 }];
  await withAdmin(clients[client], (admin) => admin.createTopics({ topics }));
}

async function close({ client }) {
  const c = clients[client];
  delete clients[client];
  if (c.producer) await c.producer.disconnect();
  if (c.consumer) {
    for (const { taken } of c.inbox.waiting.splice(0)) taken(); // The handler of a message must end.
    c.inbox.put = () => Promise.resolve();
    await c.consumer.disconnect();
  }
}

// Kafka's names of errors that kafkajs names in another way.
const NAMES = {
  GROUP_COORDINATOR_NOT_AVAILABLE: "COORDINATOR_NOT_AVAILABLE",
  GROUP_LOAD_IN_PROGRESS: "COORDINATOR_LOAD_IN_PROGRESS",
  NOT_COORDINATOR_FOR_GROUP: "NOT_COORDINATOR",
  NOT_LEADER_FOR_PARTITION: "NOT_LEADER_OR_FOLLOWER",
};

function failure(error) {
  const cause = error.type ? error : [error.cause, error.originalError].find((each) => each && each.type) || error;
  const isLate = error.name === "KafkaJSRequestTimeoutError" || error.name === "KafkaJSTimeout";
  const name = cause.type || (isLate ? "REQUEST_TIMED_OUT" : error.name);
  return { name: NAMES[name] || `${name}`, message: `${error.message}`, retriable: Boolean(error.retriable), fatal: Boolean(error.isFinal) };
}

serve({ name: "kafkajs", version, features: FEATURES }, {
  open, send, flush, begin, subscribe, assign, seek, poll, commit, committed, position, close,
  commit_transaction: ({ client }) => endTransaction(client, "commit"),
  abort_transaction: ({ client }) => endTransaction(client, "abort"),
  send_offsets: sendOffsets,
  pause: pauses("pause"),
  resume: pauses("resume"),
  create_topic: createTopic,
}, failure);
