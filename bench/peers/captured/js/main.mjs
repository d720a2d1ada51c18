// Write the same records with each JavaScript client: CLIENT BOOTSTRAP TOPIC, see ../capture.py.
import { Producer, ProduceAcks } from '@platformatic/kafka'
import { CompressionTypes, Kafka, logLevel } from 'kafkajs'

const [name, bootstrap, topic] = process.argv.slice(2)
const records = [
  { key: 'k1', value: 'a value that is long enough to be compressed, '.repeat(12), headers: { trace: '1' } },
  { key: null, value: 'without a key', headers: {} },
  { key: 'k2', value: null, headers: {} },
]

async function withKafkaJS(clientId, codec, idempotent) {
  const kafka = new Kafka({ clientId, brokers: [bootstrap], logLevel: logLevel.NOTHING })
  const producer = kafka.producer({ idempotent, allowAutoTopicCreation: false })
  const messages = records.map(each => ({ ...each, partition: 0 }))
  await producer.connect()
  await producer.send({ topic, acks: -1, compression: codec === 'gzip' ? CompressionTypes.GZIP : CompressionTypes.None, messages })
  await producer.disconnect()
}

async function withPlatformatic(clientId, codec, idempotent) {
  const producer = new Producer({ clientId, bootstrapBrokers: [bootstrap], idempotent })
  const bytes = text => (text === null ? undefined : Buffer.from(text))
  const messages = records.map(each => ({
    topic, partition: 0, key: bytes(each.key), value: bytes(each.value),
    headers: new Map(Object.entries(each.headers).map(([key, value]) => [Buffer.from(key), Buffer.from(value)])),
  }))
  await producer.send({ messages, acks: ProduceAcks.ALL, compression: codec })
  await producer.close()
}

// Without further packages KafkaJS compresses with gzip only. The other one takes zstd from Node.js 22.
const codecs = name === 'kafkajs' ? ['none', 'gzip'] : ['none', 'gzip', 'snappy', 'lz4']
for (const codec of codecs) {
  for (const kind of ['plain', 'idempotent']) {
    const write = name === 'kafkajs' ? withKafkaJS : withPlatformatic
    await write(`${name}/${kind}/${codec}`, codec, kind === 'idempotent')
  }
}
