import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.AppInfoParser;

/** Adapter of Apache Kafka's Java client. */
public final class Adapter {
    private static final List<String> FEATURES = List.of(
            "producer", "idempotence", "transactions", "send-offsets", "consumer", "groups", "group-protocol-consumer",
            "cooperative", "static-membership", "pause", "rack", "admin", "gzip", "snappy", "lz4", "zstd");
    /** Settings that have other names here. In all others a dot stands for the underscore. */
    private static final Map<String, String> NAMES = Map.ofEntries(
            Map.entry("rack", "client.rack"), Map.entry("idempotence", "enable.idempotence"),
            Map.entry("batch_bytes", "batch.size"), Map.entry("compression", "compression.type"),
            Map.entry("in_flight", "max.in.flight.requests.per.connection"), Map.entry("group", "group.id"),
            Map.entry("instance", "group.instance.id"), Map.entry("assignor", "partition.assignment.strategy"),
            Map.entry("isolation", "isolation.level"), Map.entry("reset", "auto.offset.reset"),
            Map.entry("auto_commit", "enable.auto.commit"),
            Map.entry("partition_max_bytes", "max.partition.fetch.bytes"));
    private static final Map<String, Set<String>> KNOWN = Map.of("producer", ProducerConfig.configNames(),
            "consumer", ConsumerConfig.configNames(), "admin", AdminClientConfig.configNames());
    /** Settings that the broker has with the consumer protocol (KIP-848), and that a client must not have there. */
    private static final Set<String> OF_CLASSIC_GROUPS =
            Set.of("session_timeout_ms", "heartbeat_interval_ms", "assignor");
    private static final Map<String, Class<?>> ASSIGNORS = Map.of("range", RangeAssignor.class,
            "roundrobin", RoundRobinAssignor.class, "cooperative-sticky", CooperativeStickyAssignor.class);
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUTPUT = System.out;

    private final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
    private final Map<String, KafkaConsumer<String, String>> consumers = new HashMap<>();
    private final Map<String, Admin> admins = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        Adapter adapter = new Adapter();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode request = JSON.readTree(line);
            Map<String, Object> reply = new LinkedHashMap<>();
            reply.put("id", request.get("id").asLong());
            try {
                reply.put("result", adapter.serve(request));
            } catch (Exception error) {
                reply.put("error", failure(error));
            }
            write(reply);
        }
        System.exit(0);
    }

    private Map<String, ?> serve(JsonNode request) throws Exception {
        String client = request.path("client").asText();
        KafkaProducer<String, String> producer = producers.get(client);
        KafkaConsumer<String, String> consumer = consumers.get(client);
        switch (request.get("op").asText()) {
            case "hello" -> {
                return Map.of("schema", 1, "name", "kafka-clients", "version", AppInfoParser.getVersion(),
                        "language", "Java", "features", FEATURES);
            }
            case "open" -> {
                return Map.of("ignored", open(client, request));
            }
            case "send" -> send(client, request);
            case "flush" -> producer.flush();
            case "begin" -> producer.beginTransaction();
            case "send_offsets" -> producer.sendOffsetsToTransaction(
                    offsets(request.get("offsets")), consumers.get(request.get("consumer").asText()).groupMetadata());
            case "commit_transaction" -> producer.commitTransaction();
            case "abort_transaction" -> producer.abortTransaction();
            case "subscribe" -> consumer.subscribe(
                    List.of(JSON.convertValue(request.get("topics"), String[].class)), new Listener(client));
            case "assign" -> {
                consumer.assign(partitions(request.get("partitions")));
                for (JsonNode each : request.get("partitions")) {
                    if (each.hasNonNull("offset")) {
                        consumer.seek(partition(each), each.get("offset").asLong());
                    }
                }
            }
            case "seek" -> {
                JsonNode place = request.get("partition");
                consumer.seek(partition(place), place.get("offset").asLong());
            }
            case "pause" -> consumer.pause(partitions(request.get("partitions")));
            case "resume" -> consumer.resume(partitions(request.get("partitions")));
            case "poll" -> consumer.poll(Duration.ofMillis(request.get("timeout_ms").asLong()))
                    .forEach(each -> got(client, each));
            case "commit" -> {
                if (request.hasNonNull("offsets")) {
                    consumer.commitSync(offsets(request.get("offsets")));
                } else {
                    consumer.commitSync();
                }
            }
            case "committed" -> {
                var committed = consumer.committed(Set.copyOf(partitions(request.get("partitions")))).entrySet();
                return Map.of("partitions", committed.stream().filter(each -> each.getValue() != null)
                        .map(each -> place(each.getKey(), each.getValue().offset())).toList());
            }
            case "position" -> {
                return Map.of("partitions", partitions(request.get("partitions")).stream()
                        .map(each -> place(each, consumer.position(each))).toList());
            }
            case "create_topic" -> admins.get(client).createTopics(List.of(
                    new NewTopic(request.get("topic").asText(), request.path("partitions").asInt(1), (short) 1)))
                    .all().get();
            case "close" -> close(client);
            default -> throw new UnsupportedOperationException(request.get("op").asText());
        }
        return Map.of();
    }

    private Collection<String> open(String client, JsonNode request) {
        String role = request.get("role").asText();
        JsonNode settings = request.get("settings");
        boolean isClassic = !settings.path("group_protocol").asText().equals("consumer");
        Map<String, Object> own = new HashMap<>();
        Collection<String> ignored = new TreeSet<>();
        settings.properties().forEach(each -> {
            String name = NAMES.getOrDefault(each.getKey(), each.getKey().replace('_', '.'));
            String value = each.getValue().asText();
            if (KNOWN.get(role).contains(name) && (isClassic || !OF_CLASSIC_GROUPS.contains(each.getKey()))) {
                own.put(name, each.getKey().equals("assignor") ? List.of(ASSIGNORS.get(value)) : value);
            } else {
                ignored.add(each.getKey());
            }
        });
        own.put("bootstrap.servers", request.get("bootstrap").asText());
        own.put("client.id", request.get("client_id").asText());
        if (settings.has("request_timeout_ms")) {  // Operations take twice as long at most, as with the defaults.
            String name = role.equals("producer") ? "max.block.ms" : "default.api.timeout.ms";
            own.put(name, 2 * settings.get("request_timeout_ms").asInt());
        }
        if (role.equals("producer")) {
            producers.put(client, new KafkaProducer<>(own, new StringSerializer(), new StringSerializer()));
            if (settings.has("transactional_id")) {
                producers.get(client).initTransactions();
            }
        } else if (role.equals("consumer")) {
            consumers.put(client, new KafkaConsumer<>(own, new StringDeserializer(), new StringDeserializer()));
        } else {
            admins.put(client, Admin.create(own));
        }
        return ignored;
    }

    private void close(String client) throws Exception {
        Map<String, ? extends AutoCloseable> owners =
                producers.containsKey(client) ? producers : consumers.containsKey(client) ? consumers : admins;
        owners.remove(client).close();
    }

    private void send(String client, JsonNode request) {
        Integer partition = request.hasNonNull("partition") ? request.get("partition").asInt() : null;
        ProducerRecord<String, String> record = new ProducerRecord<>(request.get("topic").asText(), partition,
                request.path("key").textValue(), request.path("value").textValue());
        request.path("headers").forEach(each -> {
            String value = each.get(1).textValue();
            record.headers().add(each.get(0).asText(), value == null ? null : value.getBytes(StandardCharsets.UTF_8));
        });
        long number = request.get("record").asLong();
        producers.get(client).send(record, (metadata, error) -> {
            if (error == null) {
                event("acknowledged", client, "record", number,
                        "partition", metadata.partition(), "offset", metadata.offset());
            } else {
                event("failed", client, "record", number, "error", failure(error));
            }
        });
    }

    private static void got(String client, ConsumerRecord<String, String> record) {
        List<List<String>> headers = new ArrayList<>();
        for (Header each : record.headers()) {
            String value = each.value() == null ? null : new String(each.value(), StandardCharsets.UTF_8);
            headers.add(Arrays.asList(each.key(), value));
        }
        event("record", client, "topic", record.topic(), "partition", record.partition(), "offset", record.offset(),
                "key", record.key(), "value", record.value(), "headers", headers);
    }

    private record Listener(String client) implements ConsumerRebalanceListener {
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            changed("assigned", partitions);
        }

        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            changed("revoked", partitions);
        }

        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            changed("lost", partitions);
        }

        private void changed(String name, Collection<TopicPartition> partitions) {
            event(name, client, "partitions", partitions.stream().map(each -> place(each, null)).toList());
        }
    }

    private static TopicPartition partition(JsonNode place) {
        return new TopicPartition(place.get("topic").asText(), place.get("partition").asInt());
    }

    private static List<TopicPartition> partitions(JsonNode places) {
        List<TopicPartition> partitions = new ArrayList<>();
        places.forEach(each -> partitions.add(partition(each)));
        return partitions;
    }

    private static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode places) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode each : places) {
            Integer epoch = each.hasNonNull("leader_epoch") ? each.get("leader_epoch").asInt() : null;
            offsets.put(partition(each), new OffsetAndMetadata(
                    each.get("offset").asLong(), Optional.ofNullable(epoch), each.path("metadata").asText("")));
        }
        return offsets;
    }

    private static JsonNode place(TopicPartition partition, Long offset) {
        return JSON.createObjectNode()
                .put("topic", partition.topic()).put("partition", partition.partition()).put("offset", offset);
    }

    /** The error behind a bare KafkaException is what the application would look at. */
    private static Map<String, ?> failure(Throwable error) {
        while (error.getCause() != null
                && (error instanceof ExecutionException || error.getClass() == KafkaException.class)) {
            error = error.getCause();
        }
        Errors known = Errors.forException(error);
        boolean isFatal = error instanceof ProducerFencedException || error instanceof FencedInstanceIdException
                || error instanceof AuthorizationException || error instanceof UnsupportedVersionException;
        return Map.of("name", known == Errors.UNKNOWN_SERVER_ERROR ? error.getClass().getSimpleName() : known.name(),
                "message", String.valueOf(error.getMessage()), "retriable", error instanceof RetriableException,
                "fatal", isFatal);
    }

    private static void event(String name, String client, Object... fields) {
        Map<String, Object> message = new LinkedHashMap<>(Map.of("event", name, "client", client));
        for (int index = 0; index < fields.length; index += 2) {
            message.put((String) fields[index], fields[index + 1]);
        }
        write(message);
    }

    private static synchronized void write(Map<String, ?> message) {
        try {
            OUTPUT.write((JSON.writeValueAsString(message) + "\n").getBytes(StandardCharsets.UTF_8));
            OUTPUT.flush();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
