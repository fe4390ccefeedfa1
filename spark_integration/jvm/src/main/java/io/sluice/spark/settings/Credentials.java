package io.sluice.spark.settings;

import io.sluice.client.auth.Credential;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.Map;
import java.util.function.UnaryOperator;
import java.util.regex.Pattern;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Finds the driver's credential and passes that of its tasks to the executors, in a setting whose
 * name makes Spark redact it in UI, event log and logs.
 */
public final class Credentials {
    private static final Logger LOG = LoggerFactory.getLogger(Credentials.class);

    /** The key under which the driver's plugin passes the credential of tasks to executors. */
    private static final String TASK_SECRET = "task.secret";

    /** The setting in which Spark transports it. */
    public static final String TASK_SETTING =
            "spark.plugins.internal.conf." + ChangedSettings.PLUGIN + "." + TASK_SECRET;

    static final String CREDENTIAL_VARIABLE = "SLUICE_CREDENTIAL";
    static final String CREDENTIAL_FILE_VARIABLE = "SLUICE_CREDENTIAL_FILE";

    private static final String AUTHENTICATE = "spark.authenticate";
    private static final String REDACTION = "spark.redaction.regex";
    private static final String DEFAULT_REDACTION = "(?i)secret|password|token|access[.]?key";

    private static final int MAX_FILE_BYTES = 4096;

    private Credentials() {}

    /**
     * Returns the credential of this driver; null if the application is not authenticated.
     *
     * @param setting returns the setting of a key, or null
     * @param environment the driver's environment variables; settings take precedence
     * @throws IllegalArgumentException if the credential is invalid, or missing although Spark's
     *     settings require one
     */
    public static Credential ofDriver(
            UnaryOperator<String> setting, Map<String, String> environment) {
        Credential credential = find(setting, environment);
        if (credential != null) {
            requireRedacted(setting, TASK_SETTING);
        } else if (Boolean.parseBoolean(setting.apply(AUTHENTICATE))) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s is true, and Sluice has no credential: its connections would not be"
                                    + " authenticated. Set %s to the file of a submit token (sluice"
                                    + " token create makes one), or %s to false",
                            AUTHENTICATE, SluiceSettings.TOKEN_FILE, AUTHENTICATE));
        }
        return credential;
    }

    private static Credential find(UnaryOperator<String> setting, Map<String, String> environment) {
        String file = orEmpty(setting.apply(SluiceSettings.TOKEN_FILE));
        String text = orEmpty(setting.apply(SluiceSettings.TOKEN));
        if (!file.isEmpty() && !text.isEmpty()) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s and %s are both set: remove the second",
                            SluiceSettings.TOKEN_FILE, SluiceSettings.TOKEN));
        }
        if (!file.isEmpty()) {
            return parse(SluiceSettings.TOKEN_FILE, read(SluiceSettings.TOKEN_FILE, file));
        }
        if (!text.isEmpty()) {
            requireRedacted(setting, SluiceSettings.TOKEN);
            LOG.warn(
                    "{} holds a credential itself: other users may see it in the list of processes,"
                            + " and each executor gets it. Write it to a file and set {} instead",
                    SluiceSettings.TOKEN,
                    SluiceSettings.TOKEN_FILE);
            return parse(SluiceSettings.TOKEN, text);
        }
        String variable = orEmpty(environment.get(CREDENTIAL_VARIABLE));
        if (!variable.isEmpty()) {
            return parse(CREDENTIAL_VARIABLE, variable);
        }
        String variableFile = orEmpty(environment.get(CREDENTIAL_FILE_VARIABLE));
        if (!variableFile.isEmpty()) {
            return parse(CREDENTIAL_FILE_VARIABLE, read(CREDENTIAL_FILE_VARIABLE, variableFile));
        }
        return null;
    }

    private static String orEmpty(String text) {
        return text == null ? "" : text.strip();
    }

    private static String read(String origin, String file) {
        try (InputStream in = Files.newInputStream(Path.of(file))) {
            return new String(in.readNBytes(MAX_FILE_BYTES), StandardCharsets.UTF_8);
        } catch (IOException | InvalidPathException e) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s is '%s', which cannot be read on the driver's host: correct the"
                                    + " path, or let the user of the driver read the file",
                            origin, file),
                    e);
        }
    }

    private static Credential parse(String origin, String text) {
        Credential credential;
        try {
            credential = Credential.parse(text);
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(origin + ": " + e.getMessage(), e);
        }
        if (!credential.isDriver()) {
            throw new IllegalArgumentException(
                    origin
                            + " holds the credential of tasks, and the driver needs more: give it a"
                            + " submit token (sluice token create makes one)");
        }
        return credential;
    }

    private static String redaction(UnaryOperator<String> setting) {
        String changed = setting.apply(REDACTION);
        return changed == null ? DEFAULT_REDACTION : changed;
    }

    /** Returns whether Spark hides the value of a setting in its UI. */
    public static boolean isRedacted(UnaryOperator<String> setting, String key) {
        return Pattern.compile(redaction(setting)).matcher(key).find();
    }

    /** Rejects a redaction pattern that does not match a secret setting. */
    private static void requireRedacted(UnaryOperator<String> setting, String key) {
        String pattern = redaction(setting);
        if (!Pattern.compile(pattern).matcher(key).find()) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s is '%s', with which Spark would show %s in its UI and event log:"
                                    + " make it match too, as in %s|secret|token",
                            REDACTION, pattern, key, pattern));
        }
    }

    /** Returns what the driver's plugin passes to executors. */
    public static Map<String, String> forExecutors(Credential ofDriver) {
        return ofDriver == null ? Map.of() : Map.of(TASK_SECRET, ofDriver.forTasks().toText());
    }

    /** Returns the credential of tasks that the driver's plugin passed; null for none. */
    public static Credential ofExecutor(Map<String, String> extraConf) {
        String text = extraConf.get(TASK_SECRET);
        return text == null ? null : Credential.parse(text);
    }
}
