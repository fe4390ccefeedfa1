package io.sluice.spark.members;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.Endpoint;
import io.sluice.spark.members.EndpointList.DnsName;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class NameResolverTest {
    private static final long INTERVAL = 30_000;
    private static final long DEADLINE = 5_000;

    private final Map<String, List<String>> records = new HashMap<>();
    private final Map<String, Integer> lookups = new HashMap<>();
    private final Deque<Runnable> hanging = new ArrayDeque<>();
    private boolean hangs;
    private long now = Long.MAX_VALUE - 7; // it wraps
    private int changes;

    private final NameResolver resolver =
            new NameResolver(
                    List.of(new DnsName("a", 7337), new DnsName("b", 7447)),
                    this::addressesOf,
                    work -> {
                        if (hangs) {
                            hanging.add(work);
                        } else {
                            work.run();
                        }
                    },
                    INTERVAL,
                    DEADLINE,
                    () -> now,
                    () -> changes++);

    private InetAddress[] addressesOf(String name) throws UnknownHostException {
        lookups.merge(name, 1, Integer::sum);
        List<String> found = records.get(name);
        if (found == null) {
            throw new UnknownHostException(name);
        }
        InetAddress[] addresses = new InetAddress[found.size()];
        for (int i = 0; i < addresses.length; i++) {
            addresses[i] = InetAddress.getByName(found.get(i));
        }
        return addresses;
    }

    private void pass(long millis) {
        now += TimeUnit.MILLISECONDS.toNanos(millis);
        resolver.tick();
    }

    private Set<String> addresses() {
        Set<String> texts = new LinkedHashSet<>();
        resolver.addresses().forEach(each -> texts.add(each.toString()));
        return texts;
    }

    @Test
    void allAddressesOfAllNamesAreUsed() {
        records.put("a", List.of("10.0.0.1", "10.0.0.2", "2001:db8::1"));
        records.put("b", List.of("::1"));
        resolver.tick();
        assertEquals(
                Set.of(
                        "10.0.0.1:7337",
                        "10.0.0.2:7337",
                        "[2001:db8:0:0:0:0:0:1]:7337",
                        "[0:0:0:0:0:0:0:1]:7447"),
                addresses());
        assertEquals(2, changes);
    }

    @Test
    void namesAreLookedUpAtTheInterval() {
        records.put("a", List.of("10.0.0.1"));
        for (long passed = 0; passed <= 2 * INTERVAL; passed += 1_000) {
            resolver.tick();
            now += TimeUnit.SECONDS.toNanos(1);
        }
        assertEquals(3, lookups.get("a"));
        assertEquals(1, changes);
    }

    @Test
    void aLossMakesNamesLookedUpAtOnceAndSoonAgain() {
        records.put("a", List.of("10.0.0.1"));
        resolver.tick();
        pass(2_000);
        records.put("a", List.of("10.0.0.9"));
        for (int times = 0; times < 10; times++) {
            resolver.lost();
        }
        assertEquals(2, lookups.get("a"), "once for losses of the same second");
        assertEquals(Set.of("10.0.0.9:7337"), addresses());
        pass(4_000);
        assertEquals(2, lookups.get("a"));
        pass(1_000);
        assertEquals(3, lookups.get("a"), "the JVM may have kept the old answer");
        pass(NameResolver.AFTER_LOSS_MILLIS);
        int before = lookups.get("a");
        pass(NameResolver.AFTER_LOSS_PAUSE_MILLIS);
        assertEquals(before, lookups.get("a"), "the interval again");
    }

    @Test
    void theNameOfAnAddressIsKnown() {
        records.put("a", List.of("10.0.0.1"));
        records.put("b", List.of("::1"));
        resolver.tick();
        assertEquals("a", resolver.hostOf(Endpoint.tcp("10.0.0.1", 7337)));
        assertEquals("10.0.0.1", resolver.hostOf(Endpoint.tcp("10.0.0.1", 7447)));
        assertEquals("10.0.0.2", resolver.hostOf(Endpoint.tcp("10.0.0.2", 7337)));
    }

    @Test
    void aNameThatFailsKeepsItsAddresses() {
        records.put("a", List.of("10.0.0.1", "10.0.0.2"));
        resolver.tick();
        records.clear();
        for (int minute = 0; minute < 4; minute++) {
            pass(60_000);
            assertEquals(Set.of("10.0.0.1:7337", "10.0.0.2:7337"), addresses());
        }
        assertEquals(1, resolver.failures().size(), "only b never had an address");
        pass(NameResolver.OUTDATED_MILLIS);
        assertEquals(Set.of(), addresses(), "nobody knows whether they are still of TaskManagers");
        records.put("a", List.of("10.0.0.2"));
        pass(INTERVAL);
        assertEquals(Set.of("10.0.0.2:7337"), addresses());
    }

    @Test
    void aHangingLookupIsALateFailureAndNotRepeated() throws InterruptedException {
        hangs = true;
        resolver.tick();
        assertFalse(resolver.awaitFirst(1), "it may still answer");
        pass(DEADLINE);
        assertTrue(resolver.awaitFirst(60_000));
        assertEquals(2, resolver.failures().size());
        pass(3 * INTERVAL);
        resolver.lost();
        assertEquals(2, hanging.size(), "one thread for each name");
        records.put("a", List.of("10.0.0.1"));
        hangs = false;
        while (!hanging.isEmpty()) {
            hanging.remove().run();
        }
        assertEquals(Set.of("10.0.0.1:7337"), addresses());
        pass(INTERVAL);
        assertEquals(2, lookups.get("a"));
    }

    @Test
    void aNegativeTimeOfTheJvmIsForever() {
        assertTrue(NameResolver.keepsForever("-1"));
        assertFalse(NameResolver.keepsForever("30"));
        assertFalse(NameResolver.keepsForever(null));
    }

    @Test
    void noMoreThanTheLimitOfAddressesIsUsed() {
        List<String> many = new java.util.ArrayList<>();
        for (int i = 0; i < NameResolver.MAX_ADDRESSES + 5; i++) {
            many.add("10.0." + i / 250 + "." + i % 250);
        }
        records.put("a", many.subList(0, 500));
        resolver.tick();
        assertEquals(500, resolver.addresses().size());
        records.put("a", many);
        pass(INTERVAL);
        assertEquals(NameResolver.MAX_ADDRESSES, resolver.addresses().size());
        assertTrue(resolver.addresses().contains(Endpoint.tcp("10.0.0.0", 7337)));
    }
}
