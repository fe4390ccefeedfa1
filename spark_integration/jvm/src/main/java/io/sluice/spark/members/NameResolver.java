package io.sluice.spark.members;

import io.sluice.client.wire.Endpoint;
import io.sluice.spark.members.EndpointList.DnsName;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.security.Security;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Resolves names periodically, and keeps the addresses of each. Thread safe.
 *
 * <p>A lookup cannot be interrupted, so each name has at most one, in a thread of its own. A name
 * that fails keeps its last addresses.
 */
public final class NameResolver {
    private static final Logger LOG = LoggerFactory.getLogger(NameResolver.class);

    /** Minimum time between two lookups of a name. */
    public static final long MIN_PAUSE_MILLIS = 1_000;

    /**
     * The JVM keeps an answer for some time, 30 seconds by default. So a name is looked up more
     * often after a loss, until a new answer must have come.
     */
    static final long AFTER_LOSS_PAUSE_MILLIS = 5_000;

    static final long AFTER_LOSS_MILLIS = 60_000;

    /** Time after which the addresses of a failing name are no longer wanted. */
    static final long OUTDATED_MILLIS = 300_000;

    /** Maximum number of addresses of a name; the driver has a connection to each. */
    static final int MAX_ADDRESSES = 1_000;

    private static final String CACHE_PROPERTY = "networkaddress.cache.ttl";
    private static final String CACHE_OPTION = "sun.net.inetaddr.ttl";

    /** Finds the addresses of a name. */
    @FunctionalInterface
    public interface Lookup {
        InetAddress[] addressesOf(String name) throws UnknownHostException;
    }

    private final Lookup lookup;
    private final Executor threads;
    private final long intervalNanos;
    private final long deadlineNanos;
    private final LongSupplier clock;
    private final Runnable whenChanged;
    private final List<Name> names = new ArrayList<>();
    private boolean fastUntilSet;
    private long fastUntil;

    /** A name and its last answer; guarded by the resolver. */
    private static final class Name {
        final DnsName name;
        Set<Endpoint> addresses = Set.of();

        /** Null if the last lookup succeeded. */
        String failure;

        /** Whether the last lookup has ended, or has taken too long. */
        boolean answered;

        boolean started;
        boolean running;
        long startedNanos;
        long succeededNanos;

        Name(DnsName name) {
            this.name = name;
        }
    }

    /**
     * @param threads run one lookup at a time for each name
     * @param deadlineMillis after which a lookup counts as failed; it may still end
     * @param clock as {@link System#nanoTime}
     * @param whenChanged called after the addresses of a name have changed, by any thread
     */
    public NameResolver(
            List<DnsName> names,
            Lookup lookup,
            Executor threads,
            long intervalMillis,
            long deadlineMillis,
            LongSupplier clock,
            Runnable whenChanged) {
        this.lookup = lookup;
        this.threads = threads;
        this.intervalNanos = TimeUnit.MILLISECONDS.toNanos(intervalMillis);
        this.deadlineNanos = TimeUnit.MILLISECONDS.toNanos(deadlineMillis);
        this.clock = clock;
        this.whenChanged = whenChanged;
        names.forEach(each -> this.names.add(new Name(each)));
    }

    /** Starts due lookups, and gives late ones up as failed. Called periodically. */
    public void tick() {
        List<Name> due = new ArrayList<>();
        synchronized (this) {
            long now = clock.getAsLong();
            for (Name name : names) {
                if (name.running) {
                    if (now - name.startedNanos >= deadlineNanos) {
                        failed(name, "the resolver has not answered in time");
                    }
                } else if (!name.started || now - name.startedNanos >= pauseNanos(now)) {
                    name.started = true;
                    name.running = true;
                    name.startedNanos = now;
                    due.add(name);
                }
            }
        }
        for (Name name : due) {
            try {
                threads.execute(() -> lookUp(name));
            } catch (RejectedExecutionException e) {
                LOG.debug("the driver ends", e);
            }
        }
    }

    /** Warns if a setting of the JVM keeps names from ever getting new addresses. */
    public void warnOfCache() {
        String ttl = Security.getProperty(CACHE_PROPERTY);
        if (!names.isEmpty()
                && keepsForever(ttl == null ? System.getProperty(CACHE_OPTION) : ttl)) {
            LOG.warn(
                    "This JVM keeps the addresses of a name forever ({} or {} is {}), so"
                            + " TaskManagers that join are found by reports only: set it to 30",
                    CACHE_PROPERTY,
                    CACHE_OPTION,
                    ttl == null ? System.getProperty(CACHE_OPTION) : ttl);
        }
    }

    static boolean keepsForever(String ttl) {
        return ttl != null && ttl.trim().startsWith("-");
    }

    private long pauseNanos(long now) {
        if (fastUntilSet && now - fastUntil < 0) {
            return Math.min(intervalNanos, TimeUnit.MILLISECONDS.toNanos(AFTER_LOSS_PAUSE_MILLIS));
        }
        return intervalNanos;
    }

    /** Called after a connection was lost: the names may have other addresses now. */
    public void lost() {
        synchronized (this) {
            long now = clock.getAsLong();
            fastUntilSet = true;
            fastUntil = now + TimeUnit.MILLISECONDS.toNanos(AFTER_LOSS_MILLIS);
            for (Name name : names) {
                boolean mayStart =
                        now - name.startedNanos >= TimeUnit.MILLISECONDS.toNanos(MIN_PAUSE_MILLIS);
                if (name.started && !name.running && mayStart) {
                    name.started = false;
                }
            }
        }
        tick();
    }

    private void lookUp(Name name) {
        Set<Endpoint> found = new LinkedHashSet<>();
        String failure = null;
        try {
            for (InetAddress address : lookup.addressesOf(name.name.name())) {
                if (found.size() < MAX_ADDRESSES) {
                    found.add(Endpoint.tcp(address.getHostAddress(), name.name.port()));
                } else {
                    failure = "it has more than " + MAX_ADDRESSES;
                }
            }
        } catch (UnknownHostException e) {
            failure = "the name is unknown, or no name server answers";
        } catch (RuntimeException e) {
            failure = e.toString();
        }
        boolean changed;
        synchronized (this) {
            name.running = false;
            if (found.isEmpty()) {
                failed(name, failure == null ? "it has no address" : failure);
                return;
            }
            succeeded(name, failure);
            changed = !found.equals(name.addresses);
            name.addresses = Set.copyOf(found);
            notifyAll();
        }
        if (changed) {
            LOG.info("{} has {} address{}", name.name, found.size(), found.size() == 1 ? "" : "es");
            whenChanged.run();
        }
    }

    private void succeeded(Name name, String problem) {
        if (problem != null && !problem.equals(name.failure)) {
            LOG.warn("Only the first addresses of {} are used: {}", name.name, problem);
        } else if (problem == null && name.failure != null) {
            LOG.info("{} has addresses again", name.name);
        }
        name.failure = problem;
        name.answered = true;
        name.succeededNanos = clock.getAsLong();
    }

    private void failed(Name name, String why) {
        if (name.failure == null) { // log it once, not at each lookup
            LOG.warn(
                    "{} cannot be resolved: {}; its last addresses ({}) are kept",
                    name.name,
                    why,
                    name.addresses.size());
        }
        name.failure = why;
        name.answered = true;
        notifyAll();
    }

    /** Waits until each name has been looked up once; returns whether that was in time. */
    public synchronized boolean awaitFirst(long timeoutMillis) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        while (names.stream().anyMatch(name -> !name.answered)) {
            long left = deadline - System.nanoTime();
            if (left <= 0) {
                return false;
            }
            // Rounded up: wait(0) has no timeout.
            wait(TimeUnit.NANOSECONDS.toMillis(left) + 1);
        }
        return true;
    }

    /** Returns the addresses of all names, each with the port of its name. */
    public synchronized Set<Endpoint> addresses() {
        Set<Endpoint> all = new LinkedHashSet<>();
        long now = clock.getAsLong();
        names.stream().filter(name -> !isOutdated(name, now)).forEach(n -> all.addAll(n.addresses));
        return all;
    }

    /** Returns the host that a certificate must name: the name of an address, or its host. */
    public synchronized String hostOf(Endpoint endpoint) {
        return names.stream()
                .filter(name -> name.addresses.contains(endpoint))
                .findFirst()
                .map(name -> name.name.name().replaceFirst("\\.$", ""))
                .orElse(endpoint.host());
    }

    /** Returns whether a name has failed for so long that its addresses may have other users. */
    private static boolean isOutdated(Name name, long now) {
        return name.failure != null
                && now - name.succeededNanos >= TimeUnit.MILLISECONDS.toNanos(OUTDATED_MILLIS);
    }

    /** Returns why names have no addresses. */
    public synchronized List<String> failures() {
        return names.stream()
                .filter(name -> name.failure != null && name.addresses.isEmpty())
                .map(name -> name.name + ": " + name.failure)
                .toList();
    }
}
