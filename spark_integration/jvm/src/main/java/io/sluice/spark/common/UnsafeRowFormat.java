package io.sluice.spark.common;

import java.lang.reflect.Field;
import org.apache.spark.serializer.Serializer;

/**
 * Describes the format of Spark SQL's {@code UnsafeRowSerializer}, so that rows can be written and
 * read without its streams.
 *
 * <p>A row is its length, an int in big endian, followed by its bytes as they are in memory. The
 * key, which is the number of the partition, is not written; readers get 0.
 */
public final class UnsafeRowFormat {
    private static final String SERIALIZER = "org.apache.spark.sql.execution.UnsafeRowSerializer";

    private UnsafeRowFormat() {}

    /**
     * Returns a field of that serializer.
     *
     * @return null if the serializer is another one or lacks the field; rows go through its streams
     *     then
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
