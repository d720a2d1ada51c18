import assert from "node:assert/strict";
import { test } from "node:test";
import { Kafka, logLevel } from "kafkajs";
import { Crucible } from "./crucible.js";

test("a lost response does not duplicate an order", async () => {
  const crucible = await Crucible.start();
  try {
    await crucible.call("POST", "/v1/topics", { name: "orders" });
    await crucible.call("POST", "/v1/rules", {
      api: "Produce",
      client_id: "orders-*",
      act: "drop_response",
      times: 1,
    });

    const kafka = new Kafka({
      clientId: "orders-1",
      brokers: crucible.bootstrapServers,
      logLevel: logLevel.NOTHING,
    });
    const producer = kafka.producer({ idempotent: true });
    await producer.connect();
    await producer.send({ topic: "orders", messages: [{ value: "one coffee" }] });
    await producer.disconnect();

    const records = await crucible.call("GET", "/v1/topics/orders/records");
    assert.deepEqual(records.map((record) => record.value), ["one coffee"]);
  } finally {
    await crucible.stop();
  }
});
