package io.sluice.client;

import java.util.concurrent.TimeUnit;

/** Growing pauses between attempts to reach a TaskManager that may be back soon, up to a deadline. */
public final class Patience {
  private static final long FIRST_PAUSE_MILLIS = 100;
  private static final long LONGEST_PAUSE_MILLIS = 1_000;

  private final long deadlineNanos;
  private long pauseMillis = FIRST_PAUSE_MILLIS;

  public Patience(long timeoutMillis) {
    this.deadlineNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
  }

  /**
   * Pauses; says whether another attempt is due.
   *
   * @param what what is waited for
   * @return false, at once, when the deadline is over
   * @throws ClientException.Interrupted the thread was interrupted meanwhile
   */
  public boolean pause(String what) throws ClientException.Interrupted {
    long leftMillis = TimeUnit.NANOSECONDS.toMillis(deadlineNanos - System.nanoTime());
    if (leftMillis <= 0) {
      return false;
    }
    try {
      Thread.sleep(Math.min(pauseMillis, leftMillis));
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new ClientException.Interrupted("interrupted while waiting for " + what);
    }
    pauseMillis = Math.min(pauseMillis * 2, LONGEST_PAUSE_MILLIS);
    return true;
  }
}
