package io.sluice;

import java.lang.ref.Reference;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayDeque;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.Set;

/** The objects that one object reaches by strong references, without static fields. */
public final class Reachable {
    /** The JDK does not open its packages to reflection, but this class reads any field. */
    private static final Object UNSAFE = unsafe();

    private static final Method OFFSET = unsafeMethod("objectFieldOffset", Field.class);
    private static final Method GET = unsafeMethod("getObject", Object.class, long.class);

    private static final Map<Class<?>, Integer> ELEMENT_BYTES =
            Map.of(
                    boolean.class,
                    1,
                    byte.class,
                    1,
                    char.class,
                    2,
                    short.class,
                    2,
                    int.class,
                    4,
                    float.class,
                    4,
                    long.class,
                    8,
                    double.class,
                    8);

    private final Map<Class<?>, Integer> counts = new HashMap<>();
    private long objects;
    private long arrayBytes;

    private Reachable() {}

    public static Reachable from(Object root) {
        Reachable found = new Reachable();
        Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        Deque<Object> todo = new ArrayDeque<>();
        todo.add(root);
        while (!todo.isEmpty()) {
            Object object = todo.poll();
            // Classes lead to everything that the JVM has loaded.
            if (!(object instanceof Class) && !(object instanceof Thread) && seen.add(object)) {
                found.count(object);
                found.follow(object, todo);
            }
        }
        return found;
    }

    /** Returns the number of objects. */
    public long objects() {
        return objects;
    }

    /** Returns the bytes in arrays of primitives. */
    public long arrayBytes() {
        return arrayBytes;
    }

    /** Returns the number of objects of exactly that class. */
    public int count(Class<?> type) {
        return counts.getOrDefault(type, 0);
    }

    private void count(Object object) {
        objects++;
        counts.merge(object.getClass(), 1, Integer::sum);
        Class<?> element = object.getClass().getComponentType();
        if (element != null && element.isPrimitive()) {
            arrayBytes += (long) Array.getLength(object) * ELEMENT_BYTES.get(element);
        }
    }

    private void follow(Object object, Deque<Object> todo) {
        if (object instanceof Object[] elements) {
            for (Object element : elements) {
                if (element != null) {
                    todo.add(element);
                }
            }
            return;
        }
        for (Class<?> type = object.getClass(); type != null; type = type.getSuperclass()) {
            if (type == Reference.class) {
                continue;
            }
            for (Field field : type.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers()) && !field.getType().isPrimitive()) {
                    Object value = value(object, field);
                    if (value != null) {
                        todo.add(value);
                    }
                }
            }
        }
    }

    private static Object value(Object object, Field field) {
        try {
            if (field.trySetAccessible()) {
                return field.get(object);
            }
            // Nothing reads the lambdas of the JDK.
            return field.getDeclaringClass().isHidden()
                    ? null
                    : GET.invoke(UNSAFE, object, OFFSET.invoke(UNSAFE, field));
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(field + " cannot be read", e);
        }
    }

    private static Object unsafe() {
        try {
            Field field = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return field.get(null);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("the JDK has no Unsafe", e);
        }
    }

    private static Method unsafeMethod(String name, Class<?>... parameters) {
        try {
            return UNSAFE.getClass().getMethod(name, parameters);
        } catch (NoSuchMethodException e) {
            throw new IllegalStateException("Unsafe has no " + name, e);
        }
    }
}
