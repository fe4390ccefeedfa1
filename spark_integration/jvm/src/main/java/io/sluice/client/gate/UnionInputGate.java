package io.sluice.client.gate;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.function.ToLongFunction;

/**
 * Reads several gates of one task as one: each has a connection to another data process.
 *
 * <p>Between two streams it takes any gate that has data, in rotation, or, in map order, the gate
 * with the next map output. Without an order it waits for one gate alone only if all others have
 * ended. The gates recover from failures on their own. A failure that one of them throws closes
 * all.
 */
public final class UnionInputGate implements Gate<BlockStream> {
    private final List<InputGate> gates;
    private final boolean inMapOrder;
    private final List<InputGate> unread;
    private int nextGate;
    private volatile Thread owner;

    /** Opens a gate. */
    @FunctionalInterface
    public interface Opener {
        InputGate open() throws IOException;
    }

    private UnionInputGate(List<InputGate> gates, boolean inMapOrder) {
        this.gates = gates;
        this.inMapOrder = inMapOrder;
        this.unread = new ArrayList<>(gates);
    }

    /**
     * Opens all gates; if one cannot be opened, closes the others.
     *
     * @param inMapOrder whether to read all gates together in map order
     */
    public static UnionInputGate open(List<Opener> openers, boolean inMapOrder) throws IOException {
        List<InputGate> gates = new ArrayList<>();
        try {
            for (Opener opener : openers) {
                gates.add(opener.open());
            }
            return new UnionInputGate(gates, inMapOrder);
        } catch (IOException | RuntimeException e) {
            gates.forEach(InputGate::close);
            throw e;
        }
    }

    @Override
    public BlockStream next() throws IOException {
        owner = Thread.currentThread();
        try {
            while (!unread.isEmpty()) {
                boolean waits = inMapOrder || unread.size() == 1;
                InputGate gate = pick();
                // A gate that is ready may have only channels that end or are requested again.
                BlockStream stream = waits ? gate.next() : gate.nextIfReady();
                if (stream != null) {
                    return stream;
                }
                if (gate.hasEnded()) {
                    unread.remove(gate);
                }
            }
            return null;
        } catch (IOException | RuntimeException e) {
            close();
            throw e;
        }
    }

    private InputGate pick() {
        if (unread.size() == 1) {
            return unread.get(0);
        }
        return inMapOrder
                ? unread.stream().min(Comparator.comparingInt(InputGate::nextMapIndex)).get()
                : awaitAny();
    }

    /** Waits until a gate has data or has failed. */
    private InputGate awaitAny() {
        while (true) {
            for (int i = 0; i < unread.size(); i++) {
                InputGate gate = unread.get((nextGate + i) % unread.size());
                if (gate.poll()) {
                    // Round robin: the next search starts after this gate.
                    nextGate = (nextGate + i + 1) % unread.size();
                    return gate;
                }
            }
            unread.get(0).awaitAny(unread.subList(1, unread.size()));
        }
    }

    private long sum(ToLongFunction<InputGate> count) {
        return gates.stream().mapToLong(count).sum();
    }

    @Override
    public long waitedNanos() {
        return sum(InputGate::waitedNanos);
    }

    @Override
    public long localBytes() {
        return sum(InputGate::localBytes);
    }

    @Override
    public long remoteBytes() {
        return sum(InputGate::remoteBytes);
    }

    @Override
    public boolean isReadByCaller() {
        return owner == Thread.currentThread();
    }

    @Override
    public void close() {
        gates.forEach(InputGate::close);
    }
}
