package io.sluice.spark.common;

import java.lang.reflect.Field;
import org.apache.spark.serializer.Serializer;

/**
 * The format of Spark SQL's {@code UnsafeRowSerializer}: the length of a row, an int in big endian,
 * and its bytes as they are in memory. The key is not written; readers get 0.
 */
public final class UnsafeRowFormat {
    private static final String SERIALIZER = "org.apache.spark.sql.execution.UnsafeRowSerializer";

    private UnsafeRowFormat() {}

    /** Returns a field of that serializer; null if it is another serializer or lacks the field. */
    public static Field field(Serializer serializer, String name, Class<?> type) {
        if (!serializer.getClass().getName().equals(SERIALIZER)) {
            return null;
        }
        try {
            Field field = serializer.getClass().getDeclaredField(name);
            field.setAccessible(true);
            return type.isAssignableFrom(field.getType()) ? field : null;
        } catch (NoSuchFieldException e) {
            return null;
        }
    }
}
