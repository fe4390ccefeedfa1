package io.sluice.spark.common;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.Endpoint;
import io.sluice.spark.members.Places;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class PlacesTest {
    @Test
    void aSettingPrecedesTheEnvironment() {
        Map<String, String> environment = Map.of("SLUICE_NODE", "n1", "SLUICE_ZONE", " z1 ");
        assertEquals(new Places("n1", "z1"), Places.of("", "", environment));
        assertEquals(new Places("n2", "z1"), Places.of("n2", "", environment));
        assertEquals(Places.UNKNOWN, Places.of("", "", Map.of()));
    }

    @Test
    void anInvalidVariableIsIgnored() {
        assertEquals(
                new Places("", "z"),
                Places.of("", "", Map.of("SLUICE_NODE", "n\u00e9", "SLUICE_ZONE", "z")));
    }

    @Test
    void theProblemHasTheValueAndTheLimit() {
        assertNull(Places.problemOf("spark.sluice.node", "n".repeat(253)));
        for (String wrong : List.of("n".repeat(254), "a\tb", "\u00e9")) {
            String problem = Places.problemOf("spark.sluice.node", wrong);
            assertTrue(problem.startsWith("spark.sluice.node is '"), problem);
            assertTrue(problem.contains("at most 253"), problem);
        }
    }

    @Test
    void unknownNodesAreNotTheSame() {
        assertFalse(Places.UNKNOWN.isSameNode(Places.UNKNOWN));
        assertFalse(Places.UNKNOWN.isSameZone(Places.UNKNOWN));
        assertTrue(new Places("n", "z").isSameNode(new Places("n", "")));
    }

    @Test
    void membersSurviveTheirTexts() {
        Member quiet = new Member("h1", 7337, 7339, null, List.of(Endpoint.tcp("::1", 7337)));
        Member reporting =
                new Member(
                        "2001:db8::1",
                        7337,
                        7337,
                        Member.Load.of(new Places("node 1", ""), true, 100, 1L << 40),
                        List.of());
        DriverMessages.MembersAnswer answer =
                new DriverMessages.MembersAnswer(7, List.of(quiet, reporting));
        assertEquals(answer, DriverMessages.MembersAnswer.read(answer.message()));
        assertEquals(
                new DriverMessages.MembersAnswer(7, List.of()),
                DriverMessages.MembersAnswer.read(answer.unchanged()));
    }
}
