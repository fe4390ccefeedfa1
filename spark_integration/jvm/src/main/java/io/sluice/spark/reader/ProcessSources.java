package io.sluice.spark.reader;

import io.sluice.client.gate.BlockStream;
import io.sluice.client.gate.Gate;
import io.sluice.client.gate.InputGate;
import io.sluice.client.gate.Source;
import io.sluice.client.gate.UnionInputGate;
import io.sluice.client.wire.DataProcesses;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The sources of a reduce task by the data process of the own TaskManager that reads them. Any
 * process could read all of them, but through one more process.
 *
 * @param ofOneHost whether there are several sources, and one host has all of them
 */
record ProcessSources(Map<Integer, List<Source>> byProcess, boolean ofOneHost) {

    /** Opens the gate for the sources of a process. */
    @FunctionalInterface
    interface Opener {
        InputGate open(int process, boolean inMapOrder, List<Source> sources) throws IOException;
    }

    /**
     * @param own the processes of the own TaskManager; another one may have another number
     */
    static ProcessSources of(List<Source> sources, DataProcesses own) {
        Map<Integer, List<Source>> byProcess = new TreeMap<>();
        for (Source source : sources) {
            byProcess
                    .computeIfAbsent(own.readerOf(source.port()), process -> new ArrayList<>())
                    .add(source);
        }
        boolean ofOneHost =
                sources.size() > 1 && sources.stream().map(Source::host).distinct().count() == 1;
        return new ProcessSources(byProcess, ofOneHost);
    }

    /**
     * Opens one gate for each process with sources.
     *
     * @param inMapOrder whether all sources are read in map order. Those of one host always are,
     *     because they may be the processes of one TaskManager: users rely on Spark's order
     */
    Gate<BlockStream> open(boolean inMapOrder, Opener opener) throws IOException {
        boolean ordered = inMapOrder || ofOneHost;
        List<UnionInputGate.Opener> openers = new ArrayList<>();
        byProcess.forEach(
                (process, sources) -> openers.add(() -> opener.open(process, ordered, sources)));
        return openers.size() == 1 ? openers.get(0).open() : UnionInputGate.open(openers, ordered);
    }
}
