package io.sluice.spark.settings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.auth.Credential;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class CredentialsTest {
    private static final String SECRET =
            "sluice-secret-1-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    private static final String DRIVER = Credential.parse(SECRET).toText();
    private static final String OTHER = Credential.parse(SECRET).toText();

    @TempDir private Path directory;

    private Path file(String text) throws IOException {
        return Files.writeString(Files.createTempFile(directory, "credential", ""), text);
    }

    private static UnaryOperator<String> conf(String... settings) {
        Map<String, String> conf = new HashMap<>();
        for (int i = 0; i < settings.length; i += 2) {
            conf.put(settings[i], settings[i + 1]);
        }
        return conf::get;
    }

    private static String textOf(UnaryOperator<String> conf, Map<String, String> environment) {
        return Credentials.ofDriver(conf, environment).toText();
    }

    private static void checkRefused(UnaryOperator<String> conf, String... parts) {
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> Credentials.ofDriver(conf, Map.of()))
                        .getMessage();
        for (String part : parts) {
            assertTrue(message.contains(part), message);
        }
        assertFalse(message.contains("\n"), message);
    }

    @Test
    void settingsGoBeforeTheEnvironment() throws IOException {
        Map<String, String> environment = Map.of("SLUICE_CREDENTIAL", OTHER);
        String path = file(DRIVER + "\n").toString();
        assertEquals(DRIVER, textOf(conf(SluiceSettings.TOKEN_FILE, path), environment));
        assertEquals(DRIVER, textOf(conf(SluiceSettings.TOKEN, DRIVER), environment));
        assertEquals(OTHER, textOf(conf(), environment));
        assertEquals(DRIVER, textOf(conf(), Map.of("SLUICE_CREDENTIAL_FILE", path)));
        assertNull(Credentials.ofDriver(conf(), Map.of("SLUICE_CREDENTIAL", "")));
    }

    @Test
    void eachApplicationOfASecretHasAKeyOfItsOwn() throws IOException {
        UnaryOperator<String> conf = conf(SluiceSettings.TOKEN_FILE, file(SECRET).toString());
        assertNotEquals(textOf(conf, Map.of()), textOf(conf, Map.of()));
    }

    @Test
    void executorsGetTheCredentialOfTasksAlone() {
        Credential driver = Credential.parse(DRIVER);
        Map<String, String> handed = Credentials.forExecutors(driver);
        assertEquals(driver.forTasks(), Credentials.ofExecutor(handed));
        assertFalse(handed.toString().contains(DRIVER));
        assertTrue(Credentials.forExecutors(null).isEmpty());
        assertNull(Credentials.ofExecutor(Map.of()));
        for (String key : handed.keySet()) {
            assertTrue(Credentials.TASK_SETTING.endsWith("." + key), key);
        }
    }

    @Test
    void authenticationWithoutACredentialIsRefused() {
        checkRefused(
                conf("spark.authenticate", "true"),
                "spark.authenticate is true",
                "Set spark.sluice.auth.tokenFile");
        UnaryOperator<String> with =
                conf("spark.authenticate", "true", SluiceSettings.TOKEN, DRIVER);
        assertEquals(DRIVER, textOf(with, Map.of()));
    }

    @Test
    void aPatternThatWouldShowTheKeyIsRefused() {
        checkRefused(
                conf("spark.redaction.regex", "password", SluiceSettings.TOKEN, DRIVER),
                "spark.redaction.regex is 'password'",
                "password|secret|token");
        checkRefused(
                conf("spark.redaction.regex", "token", SluiceSettings.TOKEN, DRIVER),
                Credentials.TASK_SETTING);
        UnaryOperator<String> corrected =
                conf(
                        "spark.redaction.regex",
                        "password|secret|token",
                        SluiceSettings.TOKEN,
                        DRIVER);
        assertEquals(DRIVER, textOf(corrected, Map.of()));
        assertNull(Credentials.ofDriver(conf("spark.redaction.regex", "x"), Map.of()));
    }

    @Test
    void whatCannotBeUsedIsNamedWithTheRemedy() throws IOException {
        checkRefused(
                conf(SluiceSettings.TOKEN_FILE, directory.resolve("none").toString()),
                "spark.sluice.auth.tokenFile is '",
                "cannot be read on the driver's host");
        checkRefused(
                conf(SluiceSettings.TOKEN_FILE, file("hello").toString()),
                "spark.sluice.auth.tokenFile: this is not a credential",
                "sluice token create");
        checkRefused(
                conf(SluiceSettings.TOKEN, Credential.parse(DRIVER).forTasks().toText()),
                "the credential of tasks",
                "submit token");
        checkRefused(
                conf(SluiceSettings.TOKEN, DRIVER, SluiceSettings.TOKEN_FILE, "file"), "both set");
    }

    @Test
    void valuesThatSparkHidesAreHidden() {
        assertTrue(Credentials.isRedacted(key -> null, SluiceSettings.TOKEN));
        assertTrue(Credentials.isRedacted(key -> null, "spark.sluice.ssl.keyPassword"));
        assertFalse(Credentials.isRedacted(key -> null, SluiceSettings.ENDPOINTS));
        assertTrue(Credentials.isRedacted(key -> "(?i)endpoints", SluiceSettings.ENDPOINTS));
    }
}
