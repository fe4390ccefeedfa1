package io.sluice.spark.settings;

import java.lang.reflect.Method;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import org.apache.spark.SparkContext;
import org.apache.spark.internal.config.ConfigBuilder;

/** Reads settings of the calling thread's session or job, which may override the application's. */
public final class CallerSettings {
    private static final Object NO_SQL = new Object();

    /**
     * {@code SQLConf.get} and {@code SQLConf.getConfString(key, default)}; null without Spark SQL.
     */
    private static volatile Object sqlConfModule;

    /** Settings that a session or a job may set for itself. */
    private static final Set<String> OF_CALLERS =
            Set.of(SluiceSettings.ENABLED, SluiceSettings.FALLBACK_BELOW);

    private CallerSettings() {}

    /**
     * Declares the settings of callers to Spark SQL, so that sessions return their defaults. They
     * are not set, because Spark SQL copies the settings of a session over those of a thread.
     */
    public static synchronized void declare(List<SluiceSettings.Entry> entries) {
        for (SluiceSettings.Entry entry : entries) {
            if (OF_CALLERS.contains(entry.key())) {
                declare(entry);
            }
        }
    }

    private static void declare(SluiceSettings.Entry entry) {
        Object module = sqlConfModule();
        if (module == NO_SQL) {
            return;
        }
        try {
            Class<?> type = module.getClass();
            if (type.getMethod("getConfigEntry", String.class).invoke(module, entry.key())
                    != null) {
                return; // an earlier application of this JVM declared it
            }
            ConfigBuilder builder =
                    (ConfigBuilder)
                            type.getMethod("buildConf", String.class).invoke(module, entry.key());
            builder.doc(entry.meaning()).stringConf().createWithDefault(entry.defaultValue());
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(
                    entry.key() + " cannot be declared to Spark's SQLConf", e);
        }
    }

    /**
     * Returns a lookup by key in the thread's local properties, into which Spark SQL copies the
     * session's settings during a query, then in the thread's active session.
     */
    public static Function<String, Optional<String>> of(SparkContext context) {
        return key -> {
            String property = context.getLocalProperty(key);
            return property != null ? Optional.of(property) : ofSession(key);
        };
    }

    private static Optional<String> ofSession(String key) {
        try {
            Object module = sqlConfModule();
            if (module == NO_SQL) {
                return Optional.empty();
            }
            Object conf = module.getClass().getMethod("get").invoke(module);
            Method lookUp = conf.getClass().getMethod("getConfString", String.class, String.class);
            return Optional.ofNullable((String) lookUp.invoke(conf, key, null));
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("Spark's SQLConf cannot be read for " + key, e);
        }
    }

    private static Object sqlConfModule() {
        Object module = sqlConfModule;
        if (module == null) {
            try {
                module =
                        Class.forName(
                                        "org.apache.spark.sql.internal.SQLConf$",
                                        true,
                                        SparkContext.class.getClassLoader())
                                .getField("MODULE$")
                                .get(null);
            } catch (ReflectiveOperationException e) {
                module = NO_SQL;
            }
            sqlConfModule = module;
        }
        return module;
    }
}
