package io.sluice.spark.reader;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.gate.Gate;
import io.sluice.client.gate.InputGate;
import io.sluice.client.gate.Source;
import io.sluice.client.gate.UnionInputGate;
import io.sluice.client.support.WrittenOutput;
import io.sluice.client.wire.DataProcesses;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class ProcessSourcesTest {
    private static final DataProcesses OWN = new DataProcesses("here", 7337, 2);

    private static Source source(String host, int port) {
        return new Source(host + ":" + port, host, port, new long[] {port}, new int[] {1});
    }

    @Test
    void aProcessReadsItsOwnSourceAndThoseOfItsIndexElsewhere() {
        Source own0 = source("here", 7337);
        Source own1 = source("here", 7339);
        Source other0 = source("there", 7337);
        Source other1 = source("there", 7339);
        ProcessSources sources = ProcessSources.of(List.of(other1, own0, own1, other0), OWN);
        assertEquals(
                Map.of(0, List.of(own0, other0), 1, List.of(other1, own1)), sources.byProcess());
        assertFalse(sources.ofOneHost());
    }

    @Test
    void aTaskManagerWithOneProcessReadsEverythingThroughIt() {
        List<Source> all = List.of(source("here", 7337), source("there", 9000));
        ProcessSources sources = ProcessSources.of(all, new DataProcesses("here", 7337, 1));
        assertEquals(Map.of(0, all), sources.byProcess());
        assertFalse(sources.ofOneHost());
    }

    @Test
    void theProcessesOfOneHostAreReadInMapOrder() {
        List<Source> own = List.of(source("here", 7337), source("here", 7339));
        List<Source> other = List.of(source("there", 7337), source("there", 7339));
        // The own TaskManager may have one process, and the other several.
        DataProcesses single = new DataProcesses("here", 7337, 1);
        for (DataProcesses processes : List.of(OWN, single)) {
            assertTrue(ProcessSources.of(own, processes).ofOneHost());
            assertTrue(ProcessSources.of(other, processes).ofOneHost());
            assertFalse(ProcessSources.of(own.subList(0, 1), processes).ofOneHost());
        }
    }

    @Test
    void aSingleProcessReadsThoseOfAnotherHostInMapOrder() throws IOException {
        List<Source> other = List.of(source("there", 7337), source("there", 7339));
        try (WrittenOutput written = new WrittenOutput(64 * 1024, 4096)) {
            written.output().commit();
            List<String> opened = new ArrayList<>();
            ProcessSources.of(other, new DataProcesses("here", 7337, 1))
                    .open(
                            false,
                            (process, inMapOrder, sources) -> {
                                opened.add(process + " " + inMapOrder + " " + sources.size());
                                return written.gate(0);
                            })
                    .close();
            assertEquals(List.of("0 true 2"), opened);
        }
    }

    @Test
    void eachProcessGetsAGateAndASingleOneNoUnion() throws IOException {
        try (WrittenOutput written = new WrittenOutput(64 * 1024, 4096)) {
            written.output().commit();
            List<String> opened = new ArrayList<>();
            List<InputGate> gates = new ArrayList<>();
            ProcessSources.Opener opener =
                    (process, inMapOrder, sources) -> {
                        opened.add(process + " " + inMapOrder + " " + sources.size());
                        gates.add(written.gate(0));
                        return gates.get(gates.size() - 1);
                    };
            Source other = source("there", 7337);
            List<Source> two = List.of(source("here", 7337), other);
            try (Gate<?> gate = ProcessSources.of(two, OWN).open(false, opener)) {
                assertSame(gates.get(0), gate);
            }
            List<Source> three = List.of(source("here", 7339), source("here", 7337), other);
            try (Gate<?> gate = ProcessSources.of(three, OWN).open(true, opener)) {
                assertTrue(gate instanceof UnionInputGate);
            }
            List<Source> own = List.of(source("here", 7339), source("here", 7337));
            ProcessSources.of(own, OWN).open(false, opener).close();
            assertEquals(
                    List.of("0 false 2", "0 true 2", "1 true 1", "0 true 1", "1 true 1"), opened);
        }
    }
}
