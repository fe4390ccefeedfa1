package io.sluice.spark.settings;

import io.sluice.client.auth.Credential;
import io.sluice.spark.SluicePlugin;
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
 * Finds the driver's credential and hands that of its tasks to the executors.
 *
 * <p>Spark brings it there in a setting of its own, which it redacts in its UI, event log and logs
 * because of the setting's name.
 */
public final class Credentials {
    private static final Logger LOG = LoggerFactory.getLogger(Credentials.class);

    /** The name under which executors get the credential of tasks from the driver's plugin. */
    private static final String TASK_SECRET = "task.secret";

    /** The setting in which Spark brings it there. */
    public static final String TASK_SETTING =
            "spark.plugins.internal.conf." + SluicePlugin.class.getName() + "." + TASK_SECRET;

    static final String CREDENTIAL_VARIABLE = "SLUICE_CREDENTIAL";
    static final String CREDENTIAL_FILE_VARIABLE = "SLUICE_CREDENTIAL_FILE";

    private static final String AUTHENTICATE = "spark.authenticate";
    private static final String REDACTION = "spark.redaction.regex";
    private static final String DEFAULT_REDACTION = "(?i)secret|password|token|access[.]?key";

    private static final int MOST_FILE_BYTES = 4096;

    private Credentials() {}

    /**
     * Returns the credential of this driver; null if the application is not authenticated.
     *
     * @param setting returns the setting of a key, or null
     * @param environment the variables of the driver's environment, which settings go before
     * @throws IllegalArgumentException if the credential cannot be used, or if there is none and
     *     Spark's settings demand one
     */
    public static Credential ofDriver(
            UnaryOperator<String> setting, Map<String, String> environment) {
        Credential credential = find(setting, environment);
        if (credential != null) {
            requireRedacted(setting, TASK_SETTING);
        } else if (Boolean.parseBoolean(setting.apply(AUTHENTICATE))) {
            throw new IllegalArgumentException(
                    AUTHENTICATE
                            + " is true, and Sluice has no credential: its connections would not be"
                            + " authenticated. Set "
                            + SluiceSettings.TOKEN_FILE
                            + " to the file of a submit token (sluice token create makes one), or "
                            + AUTHENTICATE
                            + " to false");
        }
        return credential;
    }

    private static Credential find(UnaryOperator<String> setting, Map<String, String> environment) {
        String file = orEmpty(setting.apply(SluiceSettings.TOKEN_FILE));
        String text = orEmpty(setting.apply(SluiceSettings.TOKEN));
        if (!file.isEmpty() && !text.isEmpty()) {
            throw new IllegalArgumentException(
                    SluiceSettings.TOKEN_FILE
                            + " and "
                            + SluiceSettings.TOKEN
                            + " are both set: remove the second");
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
            return new String(in.readNBytes(MOST_FILE_BYTES), StandardCharsets.UTF_8);
        } catch (IOException | InvalidPathException e) {
            throw new IllegalArgumentException(
                    origin
                            + " is '"
                            + file
                            + "', which cannot be read on the driver's host: correct the path, or"
                            + " let the user of the driver read the file",
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

    /** Refuses a pattern of the user's with which Spark would show the value of a setting. */
    private static void requireRedacted(UnaryOperator<String> setting, String key) {
        String changed = setting.apply(REDACTION);
        String pattern = changed == null ? DEFAULT_REDACTION : changed;
        if (!Pattern.compile(pattern).matcher(key).find()) {
            throw new IllegalArgumentException(
                    REDACTION
                            + " is '"
                            + pattern
                            + "', with which Spark would show "
                            + key
                            + " in its UI and event log: make it match too, as in "
                            + pattern
                            + "|secret|token");
        }
    }

    /** Returns what the driver's plugin hands to executors. */
    public static Map<String, String> forExecutors(Credential ofDriver) {
        return ofDriver == null ? Map.of() : Map.of(TASK_SECRET, ofDriver.forTasks().toText());
    }

    /** Returns the credential of tasks that the driver's plugin has handed over; null for none. */
    public static Credential ofExecutor(Map<String, String> extraConf) {
        String text = extraConf.get(TASK_SECRET);
        return text == null ? null : Credential.parse(text);
    }
}
