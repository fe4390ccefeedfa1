package io.sluice.spark.executor;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.DataProcesses;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.EndpointChooser.Chooser;
import io.sluice.spark.common.Member;
import io.sluice.spark.members.EndpointList;
import io.sluice.spark.members.Places;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

class ExecutorMembersTest {
    private static final int WRITES = Message.ROLE_PRODUCER;
    private static final int READS = Message.ROLE_CONSUMER;

    private DriverMessages.MembersAnswer atDriver = new DriverMessages.MembersAnswer(1, List.of());
    private final List<Long> asked = new ArrayList<>();
    private boolean driverIsAway;

    private Object ask(Object message) throws IOException {
        if (driverIsAway) {
            throw new IOException("the driver is away");
        }
        long version = Long.parseLong(((String[]) message)[1]);
        asked.add(version);
        return version == atDriver.version() ? atDriver.unchanged() : atDriver.message();
    }

    private ExecutorMembers members(String endpoints, String node) {
        return new ExecutorMembers(
                EndpointList.parse(endpoints, "h"),
                new Chooser("1", "h", new Places(node, "")),
                this::ask);
    }

    private void driverHas(Member... members) {
        atDriver = new DriverMessages.MembersAnswer(atDriver.version() + 1, List.of(members));
    }

    private static Member reporting(String host, String node, boolean isDraining) {
        Member.Load load = Member.Load.of(new Places(node, ""), isDraining, 0, 1L << 30);
        return new Member(host, 7337, 7337, load, List.of());
    }

    private static List<String> hosts(List<Endpoint> endpoints) {
        return endpoints.stream().map(Endpoint::host).toList();
    }

    @Test
    void anExecutorWithNamesOnlyAsksTheDriverFirst() {
        driverHas(reporting("tm1", "", false));
        ExecutorMembers members = members("dns:sluice", "");
        assertEquals(List.of("tm1"), hosts(members.first(WRITES)));
        assertEquals(List.of("tm1"), hosts(members.first(READS)));
        assertEquals(List.of(0L), asked, "asked once");
    }

    @Test
    void configuredEndpointsAreUsedWithoutAQuestion() {
        ExecutorMembers members = members("tm1:7337", "");
        assertEquals(List.of("tm1"), hosts(members.first(WRITES)));
        assertEquals(List.of(), asked);
    }

    @Test
    void anExecutorThatHasANodeAsksFirst() {
        driverHas(reporting("far", "n2", false), reporting("near", "n1", false));
        assertEquals(List.of("near", "far"), hosts(members("far:7337", "n1").first(WRITES)));
    }

    @Test
    void membersJoinAndLeaveWhileTasksRun() {
        ExecutorMembers members = members("dns:sluice", "n1");
        driverHas(reporting("a", "n2", false));
        assertEquals(List.of("a"), hosts(members.first(WRITES)));
        driverHas(reporting("a", "n2", true), reporting("b", "n1", false));
        assertEquals(List.of("a"), hosts(members.first(WRITES)), "no question for a task");
        members.refresh();
        assertEquals(List.of("b", "a"), hosts(members.first(WRITES)));
        driverHas(reporting("b", "n1", true), reporting("c", "n3", false));
        members.refresh();
        assertEquals(List.of("c", "b"), hosts(members.first(WRITES)), "b drains");
        assertEquals(List.of("b", "c"), hosts(members.first(READS)));
        members.refresh();
        assertEquals(List.of(0L, 2L, 3L, 4L), asked);
    }

    @Test
    void membersThatReportNothingAreTriedAfterTheConfiguredOnes() {
        driverHas(new Member("old", 7337, 7337, null, List.of()));
        ExecutorMembers members = members("tm1:7337", "");
        members.refresh();
        assertEquals(List.of("tm1"), hosts(members.first(WRITES)));
        assertEquals(List.of("tm1", "old"), hosts(members.all(WRITES)));
    }

    @Test
    void membersOfANameNeedNotReport() {
        driverHas(new Member("old", 7337, 7337, null, List.of()));
        ExecutorMembers members = members("dns:sluice", "");
        assertEquals(List.of("old"), hosts(members.first(WRITES)));
        assertEquals(List.of("old"), hosts(members.first(READS)));
        assertEquals(1, asked.size());
    }

    @Test
    void aConfiguredEndpointIsTheMemberThatTheDriverReachedThere() {
        Member.Load load = Member.Load.of(new Places("n1", ""), true, 0, 1);
        Member advertised =
                new Member("10.0.0.1", 7337, 7337, load, List.of(Endpoint.tcp("tm1", 7337)));
        Member ofDriver =
                new Member("10.0.0.2", 7337, 7337, load, List.of(Endpoint.tcp("127.0.0.1", 7337)));
        driverHas(advertised, ofDriver);
        ExecutorMembers members = members("tm1:7337,127.0.0.1:7337", "n1");
        members.refresh();
        assertEquals(
                List.of("10.0.0.2", "127.0.0.1", "tm1"),
                hosts(members.first(READS)).stream().sorted().toList(),
                "the loopback address of this host is another one");
    }

    @Test
    void theLastMembersAreUsedWhileTheDriverDoesNotAnswer() {
        driverHas(reporting("a", "", false));
        ExecutorMembers members = members("dns:sluice", "");
        members.refresh();
        driverIsAway = true;
        assertEquals(List.of("a"), hosts(members.all(WRITES)));
    }

    @Test
    void placesAreThoseOfAnyProcess() {
        ExecutorMembers members = members("dns:sluice", "n1");
        assertTrue(members.mayHave(new DataProcesses("tm1", 7337, 2)), "nothing is known yet");
        driverHas(reporting("tm1", "n7", false));
        members.refresh();
        DataProcesses processes = new DataProcesses("tm1", 7337, 2);
        Message.HelloAck second =
                new Message.HelloAck(1, "x", 1, 0, 0, "tm1", processes.portOf(1), "i", 1, 2);
        assertEquals("n7", members.placesOf(second).node());
        assertTrue(members.mayHave(processes));
        assertFalse(members.mayHave(new DataProcesses("tm2", 7337, 2)));
    }
}
