package io.sluice.client.wire;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class DataProcessesTest {
    private static final DataProcesses OWN =
            DataProcesses.of(new Message.HelloAck(1, "tm-2", 1024, 0, 0, "here", 7341, "i", 2, 4));

    @Test
    void oneProcessTellsWhereTheOthersAre() {
        assertEquals(new DataProcesses("here", 7337, 4), OWN);
        assertTrue(OWN.contains("here", 7337));
        assertTrue(OWN.contains("here", 7343));
        assertFalse(OWN.contains("here", 7335));
        assertFalse(OWN.contains("here", 7338), "the HTTP port");
        assertFalse(OWN.contains("here", 7345));
        assertFalse(OWN.contains("there", 7337));
    }

    @Test
    void aProcessReadsItsOwnAndThatOfTheSameIndexElsewhere() {
        assertEquals(0, OWN.readerOf(7337));
        assertEquals(3, OWN.readerOf(7343));
    }

    @Test
    void otherPortsAreSpreadOverAllProcesses() {
        int[] readers =
                IntStream.range(4500, 4504).map(i -> 2 * i).map(OWN::readerOf).sorted().toArray();
        assertEquals("0123", readers[0] + "" + readers[1] + readers[2] + readers[3]);
        assertEquals(OWN.readerOf(7345), OWN.readerOf(7353));
    }

    @Test
    void oneProcessReadsEverything() {
        DataProcesses single = new DataProcesses("here", 7337, 1);
        assertEquals(0, single.readerOf(7337));
        assertEquals(0, single.readerOf(9001));
    }
}
