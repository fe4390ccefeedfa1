package io.sluice.spark;

import java.lang.reflect.Field;
import org.apache.spark.serializer.Serializer;

/**
 * What is known of Spark SQL's {@code UnsafeRowSerializer}, so that its rows can be written and
 * read without its streams.
 *
 * <p>A row is its length, an int in big endian, and then its bytes as they lie in memory. The key,
 * the partition's number, is not written; readers get 0 for it.
 */
public final class UnsafeRowFormat {
    private static final String SERIALIZER = "org.apache.spark.sql.execution.UnsafeRowSerializer";

    private UnsafeRowFormat() {}

    /**
     * A field of that serializer.
     *
     * @return null when the serializer is another one, or not as it is known: then rows go through
     *     its streams
     */
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
