package orders;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** A cluster for one test: crucible serve, and its control API. */
final class Crucible implements AutoCloseable {
    private static final ObjectMapper JSON = new ObjectMapper();

    final String bootstrapServers;
    private final Process process;
    private final String control;
    private final String token;
    private final HttpClient http = HttpClient.newHttpClient();

    /** Start crucible serve. The pipe to its stdin ends it even if this process is killed. */
    Crucible(String... words) throws IOException {
        List<String> command = new ArrayList<>(List.of("crucible", "serve"));
        command.addAll(List.of(words));
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        String line = process.inputReader().readLine();
        if (line == null) {
            throw new IOException("crucible serve has ended");
        }
        JsonNode ready = JSON.readTree(line);
        bootstrapServers = ready.get("bootstrap_servers").asText();
        control = ready.get("control").asText();
        token = ready.get("token").asText();
    }

    JsonNode get(String path) throws IOException, InterruptedException {
        return send(request(path).GET());
    }

    JsonNode post(String path, Map<String, ?> arguments) throws IOException, InterruptedException {
        String body = JSON.writeValueAsString(arguments);
        return send(request(path).POST(HttpRequest.BodyPublishers.ofString(body)));
    }

    private HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create(control + path)).header("Authorization", "Bearer " + token);
    }

    /** Return the response. A refusal, or an assertion that failed, is an AssertionError with its sentence. */
    private JsonNode send(HttpRequest.Builder request) throws IOException, InterruptedException {
        HttpResponse<String> response = http.send(request.build(), HttpResponse.BodyHandlers.ofString());
        JsonNode body = JSON.readTree(response.body());
        if (response.statusCode() >= 300) {
            throw new AssertionError(body.get("error").asText());
        }
        return body;
    }

    @Override
    public void close() {
        process.destroy();
        try {
            process.waitFor();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
