package io.sluice.spark.driver;

import io.sluice.client.wire.DataProcesses;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.Member;
import io.sluice.spark.members.EndpointList;
import io.sluice.spark.members.NameResolver;
import io.sluice.spark.members.Places;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The TaskManagers of an application, while they come and go: those of the setting, the addresses
 * of its names, and those that executors and other TaskManagers report. The driver has a link to
 * each, and identifies a TaskManager by the id with which it answers there. Thread safe.
 */
final class Members implements Membership {
    private static final Logger LOG = LoggerFactory.getLogger(Members.class);

    /** State of a TaskManager that takes no new map outputs. */
    private static final int DRAINING = 1;

    /** Maximum number of reports that are kept. */
    private static final int MAX_REPORTS = 2_000;

    private final EndpointList configured;
    private final DriverLinks links;
    private final NameResolver names;

    /** Ids that other TaskManagers have reported, by address. */
    private final Map<Endpoint, String> reportedIds = new ConcurrentHashMap<>();

    /** The latest report of each data process, by id. */
    private final Map<String, Message.MemberReport> reports = new ConcurrentHashMap<>();

    /** Endpoints that executors have reached. */
    private final Set<Endpoint> reached = ConcurrentHashMap.newKeySet();

    /** Endpoints that lead to a TaskManager with another link, and its id. */
    private final Map<Endpoint, String> aliases = new ConcurrentHashMap<>();

    /** Held while links are added for reports, and reports without links are removed. */
    private final Object adding = new Object();

    /** Whether the members may differ from {@link #sent}. */
    private volatile boolean isOutdated = true;

    private DriverMessages.MembersAnswer sent = new DriverMessages.MembersAnswer(0, List.of());

    Members(EndpointList configured, DriverLinks links, NameResolver names) {
        this.configured = configured;
        this.links = links;
        this.names = names;
    }

    /** Adds links to new TaskManagers, and drops links to silent ones. */
    void update() {
        names.tick();
        addWanted();
        Set<Endpoint> resolved = names.addresses();
        links.dropSilent(resolved::contains);
        synchronized (adding) {
            reached.removeIf(endpoint -> !links.contains(endpoint));
            reportedIds.keySet().removeIf(endpoint -> !links.contains(endpoint));
        }
        aliases.keySet().retainAll(resolved);
    }

    /** Adds links to configured TaskManagers and to the addresses of names. */
    void addWanted() {
        for (Endpoint endpoint : configured.local()) {
            if (!endpoint.isUnix() || endpoint.socketExists()) {
                links.add(endpoint);
            }
        }
        for (Endpoint endpoint : names.addresses()) {
            String id = aliases.get(endpoint);
            if (id == null || links.connected(id) == null) {
                links.add(endpoint);
            }
        }
    }

    /** Warns if the JVM never resolves names again. */
    void warnOfCache() {
        names.warnOfCache();
    }

    /** Waits for the first addresses of names. */
    void awaitNames(long timeoutMillis) throws InterruptedException {
        if (!configured.names().isEmpty()) {
            names.tick();
            if (names.awaitFirst(timeoutMillis)) {
                addWanted();
            }
        }
    }

    /** Called when an executor uses a TaskManager. */
    void reached(String taskManagerId, Endpoint endpoint) {
        boolean known =
                links.values().stream()
                        .filter(link -> link.isTo(taskManagerId))
                        .map(DriverLink::taskManager)
                        .anyMatch(t -> DriverLinks.isAt(t, endpoint.host(), endpoint.port()));
        if (!known) {
            LOG.info("TaskManager {} at {} serves this application", taskManagerId, endpoint);
            synchronized (adding) {
                reached.add(endpoint);
                links.add(endpoint);
            }
        }
    }

    /** Returns why configured endpoints and names cannot be used, besides failed connections. */
    List<String> failures() {
        List<String> all = new ArrayList<>();
        for (Endpoint endpoint : configured.fixed()) {
            if (!links.contains(endpoint)) {
                all.add(endpoint + ": there is no such socket on the driver's host");
            }
        }
        configured.globs().stream()
                .filter(glob -> glob.sockets().isEmpty())
                .forEach(glob -> all.add(glob + ": no socket on the driver's host matches"));
        all.addAll(names.failures());
        return all;
    }

    // ---- decisions about links

    @Override
    public boolean isConfigured(Endpoint endpoint) {
        return configured.fixed().contains(endpoint)
                || (endpoint.isUnix() && endpoint.socketExists());
    }

    @Override
    public boolean isOfOne(Endpoint endpoint) {
        // Another pod soon gets the address of a pod, and the first one may return elsewhere.
        return isConfigured(endpoint) || reached.contains(endpoint);
    }

    @Override
    public String whyForeign(Endpoint endpoint, Message.HelloAck answer) {
        String expected = reportedIds.get(endpoint);
        if (expected == null
                || expected.equals(answer.taskManagerId())
                || isConfigured(endpoint)
                || reached.contains(endpoint)
                || names.addresses().contains(endpoint)) {
            return null;
        }
        return String.format(
                "TaskManager %s answers at %s, where %s was reported. It is used after a"
                        + " TaskManager has reported it",
                answer.taskManagerId(), endpoint, expected);
    }

    @Override
    public void isAlias(Endpoint endpoint, String taskManagerId) {
        aliases.put(endpoint, taskManagerId);
    }

    @Override
    public void reported(Message.MemberReport report, boolean ofItself) {
        String id = report.taskManagerId();
        if (!reports.containsKey(id) && reports.size() >= MAX_REPORTS) {
            reports.keySet().removeIf(each -> links.connected(each) == null);
        }
        if (report.equals(reports.put(id, report)) && links.connected(id) != null) {
            return;
        }
        isOutdated = true;
        Endpoint endpoint = Endpoint.tcp(report.host(), report.port());
        // Its own first report comes before its link counts as connected.
        if (!ofItself && links.connected(id) == null) {
            synchronized (adding) {
                if (!id.equals(reportedIds.put(endpoint, id))) {
                    LOG.info("TaskManager {} at {} is reported", id, endpoint);
                }
                links.add(endpoint);
            }
        }
    }

    @Override
    public void changed(boolean isLoss) {
        isOutdated = true;
        if (isLoss) {
            names.lost();
        }
    }

    // ---- answers to executors

    /**
     * Returns the message with the members for an executor.
     *
     * @param version the version that the executor has
     */
    String[] since(long version) {
        DriverMessages.MembersAnswer answer = current();
        return answer.version() == version ? answer.unchanged() : answer.message();
    }

    /** Returns the connected TaskManagers. */
    synchronized DriverMessages.MembersAnswer current() {
        if (isOutdated) {
            isOutdated = false;
            List<Member> members = connected();
            if (sent.version() == 0 || !members.equals(sent.members())) {
                sent = new DriverMessages.MembersAnswer(sent.version() + 1, members);
            }
        }
        return sent;
    }

    /** A data process, and the endpoint at which the driver is connected to it. */
    private record Connected(Message.HelloAck answer, Endpoint endpoint) {}

    private List<Member> connected() {
        Map<String, List<Connected>> byTaskManager = new TreeMap<>();
        for (DriverLink link : links.values()) {
            Message.HelloAck answer = link.taskManager();
            if (link.isConnected() && answer != null) {
                DataProcesses processes = DataProcesses.of(answer);
                byTaskManager
                        .computeIfAbsent(
                                Endpoint.tcp(processes.host(), processes.firstPort()).toString(),
                                address -> new ArrayList<>())
                        .add(new Connected(answer, link.endpoint()));
            }
        }
        return byTaskManager.values().stream().map(this::member).toList();
    }

    private Member member(List<Connected> links) {
        links.sort(
                Comparator.<Connected>comparingInt(each -> each.answer().process())
                        .thenComparing(each -> each.endpoint().toString()));
        Message.HelloAck first = links.get(0).answer();
        return new Member(
                first.advertisedHost(),
                DataProcesses.of(first).firstPort(),
                first.dataPort(),
                load(links),
                links.stream()
                        .map(Connected::endpoint)
                        .filter(endpoint -> !endpoint.isUnix())
                        .distinct()
                        .toList());
    }

    /** Adds up the reports of all processes; returns null if there are none. */
    private Member.Load load(List<Connected> links) {
        Map<String, Message.MemberReport> found = new HashMap<>();
        for (Connected link : links) {
            Message.MemberReport report = reports.get(link.answer().taskManagerId());
            if (report != null) {
                found.put(report.taskManagerId(), report);
            }
        }
        if (found.isEmpty()) {
            return null;
        }
        Message.MemberReport any = found.values().iterator().next();
        return Member.Load.of(
                new Places(any.node(), any.zone()),
                found.values().stream().anyMatch(each -> each.state() == DRAINING),
                found.values().stream().mapToLong(Message.MemberReport::openOutputs).sum(),
                found.values().stream().mapToLong(Message.MemberReport::freeBytes).sum());
    }
}
