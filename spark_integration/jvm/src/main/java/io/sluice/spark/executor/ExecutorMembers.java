package io.sluice.spark.executor;

import io.sluice.client.wire.DataProcesses;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.EndpointChooser;
import io.sluice.spark.common.EndpointChooser.Candidate;
import io.sluice.spark.common.EndpointChooser.Chooser;
import io.sluice.spark.common.Member;
import io.sluice.spark.members.EndpointList;
import io.sluice.spark.members.Places;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.slf4j.event.Level;

/**
 * The TaskManagers that an executor may use: those of the setting, and those that the driver sends.
 * The driver resolves names; an executor never does. Thread safe.
 */
final class ExecutorMembers implements TaskManagerLeases.Candidates {
    private static final Logger LOG = LoggerFactory.getLogger(ExecutorMembers.class);

    /** Time between two questions to the driver. */
    static final long INTERVAL_MILLIS = 5_000;

    /** Asks the driver's plugin and waits for its answer. */
    @FunctionalInterface
    interface Driver {
        Object ask(Object message) throws Exception;
    }

    private final EndpointList configured;
    private final Chooser chooser;
    private final Driver driver;

    /** The members, and the orders of endpoints that follow from them. */
    private volatile Known known;

    /** Whether the driver has answered. */
    private volatile boolean hasAnswer;

    /**
     * The members of one version.
     *
     * @param local configured endpoints and sockets
     * @param byAddress members by advertised address of process 0
     * @param producers the order for map tasks
     * @param readers the order for all others
     * @param all the same two orders with all members; the key is whether a map task writes
     */
    private record Known(
            long version,
            List<Endpoint> local,
            List<Member> members,
            Map<Endpoint, Member> byAddress,
            List<Endpoint> producers,
            List<Endpoint> readers,
            Map<Boolean, List<Endpoint>> all) {}

    ExecutorMembers(EndpointList configured, Chooser chooser, Driver driver) {
        this.configured = configured;
        this.chooser = chooser;
        this.driver = driver;
        this.known = known(0, configured.local(), List.of());
    }

    @Override
    public List<Endpoint> first(int role) {
        if (!hasAnswer && needsAnswer()) {
            ask(Level.WARN);
        }
        Known now = known;
        return role == Message.ROLE_PRODUCER ? now.producers() : now.readers();
    }

    /** Returns whether the first choice depends on the driver's answer. */
    private boolean needsAnswer() {
        return known.local().isEmpty() || !chooser.places().equals(Places.UNKNOWN);
    }

    @Override
    public List<Endpoint> all(int role) {
        ask(Level.WARN);
        return known.all().get(role == Message.ROLE_PRODUCER);
    }

    /** Asks the driver, and looks for new sockets. Called periodically. */
    void refresh() {
        ask(Level.DEBUG);
    }

    private void ask(Level ofFailure) {
        long version = known.version();
        DriverMessages.MembersAnswer answer = null;
        try {
            String[] message = (String[]) driver.ask(DriverMessages.members(version));
            answer = DriverMessages.MembersAnswer.read(message);
            hasAnswer = true;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (Exception e) {
            LOG.atLevel(ofFailure)
                    .setCause(e)
                    .log("Could not ask the driver for the TaskManagers it knows");
        }
        update(answer, configured.local());
    }

    private synchronized void update(DriverMessages.MembersAnswer answer, List<Endpoint> local) {
        Known before = known;
        boolean isNewer = answer != null && answer.version() > before.version();
        if (isNewer || !local.equals(before.local())) {
            known =
                    isNewer
                            ? known(answer.version(), local, answer.members())
                            : known(before.version(), local, before.members());
        }
    }

    private Known known(long version, List<Endpoint> local, List<Member> members) {
        List<Member> used = members.stream().filter(this::isChosen).toList();
        Map<Endpoint, Member> byEndpoint = byEndpoint(used);
        Map<Endpoint, Candidate> candidates = new LinkedHashMap<>();
        Set<Member> listed = new HashSet<>();
        for (Endpoint endpoint : local) {
            Member member = byEndpoint.get(endpoint);
            candidates.put(endpoint, new Candidate(endpoint, member));
            listed.add(member);
        }
        for (Member member : used) {
            if (listed.add(member)) {
                candidates.putIfAbsent(member.endpoint(), new Candidate(member.endpoint(), member));
            }
        }
        List<Candidate> all = List.copyOf(candidates.values());
        List<Endpoint> producers = EndpointChooser.order(all, chooser, true);
        List<Endpoint> readers = EndpointChooser.order(all, chooser, false);
        List<Endpoint> others =
                EndpointChooser.order(
                        members.stream()
                                .map(Member::endpoint)
                                .filter(endpoint -> !candidates.containsKey(endpoint))
                                .toList(),
                        chooser.host(),
                        chooser.executorId());
        Map<Endpoint, Member> byAddress = new HashMap<>();
        members.forEach(
                member -> byAddress.put(Endpoint.tcp(member.host(), member.firstPort()), member));
        return new Known(
                version,
                local,
                members,
                byAddress,
                producers,
                readers,
                Map.of(true, joined(producers, others), false, joined(readers, others)));
    }

    /** Returns whether a member is among the first choices: it reports, or a name is configured. */
    private boolean isChosen(Member member) {
        return member.load() != null || !configured.names().isEmpty();
    }

    private static Map<Endpoint, Member> byEndpoint(List<Member> members) {
        Map<Endpoint, Member> byEndpoint = new HashMap<>();
        for (Member member : members) {
            for (Endpoint dialed : member.dialed()) {
                // On this host it may be another TaskManager.
                if (!EndpointChooser.isOfEachHost(dialed)) {
                    byEndpoint.put(dialed, member);
                }
            }
        }
        members.forEach(member -> byEndpoint.put(member.endpoint(), member));
        return byEndpoint;
    }

    private static List<Endpoint> joined(List<Endpoint> first, List<Endpoint> second) {
        List<Endpoint> all = new ArrayList<>(first);
        all.addAll(second);
        return List.copyOf(all);
    }

    /** Returns whether the driver is connected to a TaskManager, or has not answered yet. */
    boolean mayHave(DataProcesses processes) {
        return !hasAnswer || member(processes) != null;
    }

    /** Returns node and zone of a TaskManager. */
    Places placesOf(Message.HelloAck answer) {
        Member member = member(DataProcesses.of(answer));
        return member == null ? Places.UNKNOWN : member.places();
    }

    private Member member(DataProcesses processes) {
        return known.byAddress().get(Endpoint.tcp(processes.host(), processes.firstPort()));
    }

    Places ownPlaces() {
        return chooser.places();
    }
}
