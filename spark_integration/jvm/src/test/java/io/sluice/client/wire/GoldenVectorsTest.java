package io.sluice.client.wire;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.sluice.client.support.TestFrames;
import java.io.File;
import java.io.IOException;
import java.lang.reflect.RecordComponent;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** Checks the golden vectors, which the Python tests read too. */
class GoldenVectorsTest {
    private static JsonNode vectors() throws IOException {
        return new ObjectMapper().readTree(new File(System.getProperty("sluice.vectors")));
    }

    @TestFactory
    List<DynamicTest> messages() throws IOException {
        List<DynamicTest> tests = new ArrayList<>();
        for (JsonNode vector : vectors().get("messages")) {
            tests.add(
                    DynamicTest.dynamicTest(
                            vector.get("name").asText(), () -> checkMessage(vector)));
        }
        assertTrue(tests.size() >= 30, "one vector for each message at least");
        return tests;
    }

    private static void checkMessage(JsonNode vector) throws Exception {
        byte[] control = hex(vector, "control_hex");
        byte[] payload = hex(vector, "payload_hex");
        Message message = new MessageDecoder().decode(control, control.length);
        assertEquals(vector.get("type").asText(), message.getClass().getSimpleName());
        assertEquals(vector.get("fields").toString(), fieldsAsJson(message), "fields");
        assertEquals(vector.get("control_hex").asText(), hex(new MessageEncoder().encode(message)));
        byte[] frame = TestFrames.frame(message, payload);
        assertEquals(vector.get("frame_hex").asText(), hex(frame));
    }

    @TestFactory
    List<DynamicTest> malformedMessages() throws IOException {
        List<DynamicTest> tests = new ArrayList<>();
        for (JsonNode vector : vectors().get("malformed")) {
            byte[] control = hex(vector, "control_hex");
            tests.add(
                    DynamicTest.dynamicTest(
                            vector.get("name").asText() + ": " + vector.get("reason").asText(),
                            () ->
                                    assertThrows(
                                            ClientException.Protocol.class,
                                            () ->
                                                    new MessageDecoder()
                                                            .decode(control, control.length))));
        }
        return tests;
    }

    @Test
    void blockHeaders() throws IOException {
        for (JsonNode vector : vectors().get("blocks")) {
            byte[] block = hex(vector, "block_hex");
            byte[] stored = hex(vector, "stored_hex");
            assertEquals(
                    vector.get("map_attempt_id").asLong(),
                    Blocks.getLong(block, Blocks.MAP_ATTEMPT));
            assertEquals(
                    vector.get("subpartition").asInt(), Blocks.getInt(block, Blocks.SUBPARTITION));
            assertEquals(stored.length, Blocks.getInt(block, Blocks.STORED_LENGTH));
            assertEquals(vector.get("raw_length").asInt(), Blocks.getInt(block, Blocks.RAW_LENGTH));
            assertEquals(vector.get("codec").asInt(), block[Blocks.CODEC]);
            assertEquals(vector.get("flags").asInt(), block[Blocks.FLAGS]);
            assertEquals(vector.get("number").asInt(), Blocks.getShort(block, Blocks.NUMBER));
            CRC32C crc = new CRC32C();
            crc.update(stored);
            assertEquals((int) crc.getValue(), Blocks.getInt(block, Blocks.CRC));
            assertEquals(Blocks.HEADER_BYTES + stored.length, block.length);
        }
    }

    private static String fieldsAsJson(Object record) throws Exception {
        StringBuilder json = new StringBuilder("[");
        for (RecordComponent component : record.getClass().getRecordComponents()) {
            Object value = component.getAccessor().invoke(record);
            json.append(json.length() > 1 ? "," : "").append(asJson(value, component.getName()));
        }
        return json.append("]").toString();
    }

    private static String asJson(Object value, String name) throws Exception {
        if (value instanceof byte[] bytes) {
            return "{\"bytes_hex\":\"" + hex(bytes) + "\"}";
        }
        if (value instanceof long[] numbers) {
            List<String> parts = new ArrayList<>();
            for (long number : numbers) {
                parts.add(
                        name.equals("lengths")
                                ? Long.toUnsignedString(number)
                                : Long.toString(number));
            }
            return "[" + String.join(",", parts) + "]";
        }
        if (value instanceof List<?> list) {
            List<String> parts = new ArrayList<>();
            for (Object element : list) {
                parts.add(
                        element instanceof Long attempt
                                ? Long.toString(attempt)
                                : fieldsAsJson(element));
            }
            return "[" + String.join(",", parts) + "]";
        }
        if (value instanceof String text) {
            return new ObjectMapper().writeValueAsString(text);
        }
        if (value instanceof Long number && !name.equals("mapAttemptId")) {
            return Long.toUnsignedString(number);
        }
        return String.valueOf(value);
    }

    private static byte[] hex(JsonNode vector, String field) {
        return HexFormat.of().parseHex(vector.get(field).asText());
    }

    private static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }
}
