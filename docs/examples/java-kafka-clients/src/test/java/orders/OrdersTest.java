package orders;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;

class OrdersTest {
    @Test
    void aLostResponseDoesNotDuplicateAnOrder() throws Exception {
        try (Crucible kafka = new Crucible()) {
            kafka.post("/v1/topics", Map.of("name", "orders"));
            kafka.post(
                "/v1/rules",
                Map.of("api", "Produce", "client_id", "orders-*", "act", "drop_response", "times", 1)
            );

            Properties settings = new Properties();
            settings.put("bootstrap.servers", kafka.bootstrapServers);
            settings.put("client.id", "orders-1");
            try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
                producer.send(new ProducerRecord<>("orders", "one coffee")).get();
            }

            kafka.post("/v1/rules/check", Map.of());
            JsonNode records = kafka.get("/v1/topics/orders/records");
            assertEquals(1, records.size());
            assertEquals("one coffee", records.get(0).get("value").asText());
        }
    }
}
