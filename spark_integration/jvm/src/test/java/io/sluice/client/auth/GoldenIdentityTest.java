package io.sluice.client.auth;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import io.sluice.client.wire.MessageDecoder;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** Checks the golden vectors of credentials and proofs, which the Python tests read too. */
class GoldenIdentityTest {
    private static JsonNode vectors() throws IOException {
        File wire = new File(System.getProperty("sluice.vectors"));
        return new ObjectMapper().readTree(new File(wire.getParentFile(), "identity.json"));
    }

    @TestFactory
    List<DynamicTest> tokens() throws IOException {
        List<DynamicTest> tests = new ArrayList<>();
        for (JsonNode vector : vectors().get("tokens")) {
            tests.add(
                    DynamicTest.dynamicTest(vector.get("name").asText(), () -> checkToken(vector)));
        }
        assertTrue(tests.size() >= 3, "tokens with and without subject and expiry");
        return tests;
    }

    private static void checkToken(JsonNode vector) {
        Credential driver =
                Credential.parse(" " + text(vector, "text") + "\n", hex(vector, "salt_hex"));
        assertTrue(driver.isDriver());
        assertEquals(text(vector, "driver_text"), driver.toText());
        assertArrayEquals(hex(vector, "driver_claim_hex"), driver.claim().pack());
        assertEquals(text(vector, "subject"), driver.claim().subject());
        assertEquals(
                text(vector, "expires_at_seconds"),
                Long.toUnsignedString(driver.claim().expiresAtSeconds()));
        Credential task = driver.forTasks();
        assertFalse(task.isDriver());
        assertEquals(text(vector, "task_text"), task.toText());
        assertArrayEquals(hex(vector, "task_claim_hex"), task.claim().pack());
        assertEquals(driver, Credential.parse(driver.toText()));
        assertEquals(task, Credential.parse(task.toText()));
        assertEquals(task, task.forTasks());
    }

    @Test
    void aSecretIsTheTokenOfItsOwner() throws IOException {
        JsonNode owner = vectors().get("tokens").get(0);
        JsonNode secret = vectors().get("secrets").get(0);
        assertEquals(text(owner, "secret_hex"), text(secret, "secret_hex"));
        Credential driver = Credential.parse(text(secret, "text"), hex(owner, "salt_hex"));
        assertEquals(text(owner, "driver_text"), driver.toText());
        assertArrayEquals(hex(secret, "secret_id_hex"), driver.claim().secretId());
    }

    @Test
    void everyApplicationOfATokenHasAKeyOfItsOwn() throws IOException {
        String token = text(vectors().get("tokens").get(1), "text");
        assertNotEquals(Credential.parse(token), Credential.parse(token));
    }

    @Test
    void noTextAndNoMessageShowsAKey() throws IOException {
        for (JsonNode vector : vectors().get("tokens")) {
            Credential driver = Credential.parse(text(vector, "driver_text"));
            String key = HexFormat.of().formatHex(driver.key());
            assertFalse(driver.toString().contains(key), driver.toString());
            assertFalse(driver.toString().contains("key"), driver.toString());
            for (String field : List.of("text", "driver_text", "task_text")) {
                String whole = text(vector, field);
                checkRefused(whole.substring(0, 30));
                checkRefused(whole.substring(0, 25) + "*" + whole.substring(26));
                checkRefused(whole.replace("sluice-", "Sluice-"));
            }
            checkRefused(text(vector, "task_text").replace("-task-", "-driver-"));
        }
    }

    private static void checkRefused(String text) {
        IllegalArgumentException failure =
                assertThrows(IllegalArgumentException.class, () -> Credential.parse(text));
        for (Throwable each = failure; each != null; each = each.getCause()) {
            String message = String.valueOf(each.getMessage());
            assertFalse(message.contains(text.substring(16, 24)), message);
        }
    }

    @TestFactory
    List<DynamicTest> proofs() throws IOException {
        List<DynamicTest> tests = new ArrayList<>();
        for (JsonNode vector : vectors().get("handshakes")) {
            tests.add(
                    DynamicTest.dynamicTest(
                            vector.get("name").asText(), () -> checkProofs(vector)));
        }
        assertTrue(tests.size() >= 3, "with and without TLS");
        return tests;
    }

    private static void checkProofs(JsonNode vector) throws IOException {
        Proofs proofs = new Proofs(hex(vector, "key_hex"), hex(vector, "binding_hex"));
        Message.Hello hello = (Message.Hello) decoded(vector, "hello_control_hex");
        byte[] claim = hex(vector, "claim_hex");
        byte[] token =
                ByteBuffer.allocate(Frames.NONCE_BYTES + claim.length)
                        .put(hex(vector, "nonce_hex"))
                        .put(claim)
                        .array();
        assertArrayEquals(token, hello.token());
        proofs.add(hello);
        proofs.add(decoded(vector, "challenge_control_hex"));
        Message.Proof own = (Message.Proof) decoded(vector, "proof_control_hex");
        assertArrayEquals(own.proof(), proofs.ofConnecting().proof());
        proofs.add(own);
        Message.Proof answer = (Message.Proof) decoded(vector, "answer_control_hex");
        assertFalse(proofs.isOfAccepting(answer), "it covers the HelloAck");
        proofs.add(decoded(vector, "ack_control_hex"));
        assertArrayEquals(answer.proof(), proofs.ofAccepting().proof());
        assertTrue(proofs.isOfAccepting(answer));
    }

    private static Message decoded(JsonNode vector, String field) throws IOException {
        byte[] control = hex(vector, field);
        return new MessageDecoder().decode(control, control.length);
    }

    private static String text(JsonNode vector, String field) {
        return vector.get(field).asText();
    }

    private static byte[] hex(JsonNode vector, String field) {
        return HexFormat.of().parseHex(text(vector, field));
    }
}
