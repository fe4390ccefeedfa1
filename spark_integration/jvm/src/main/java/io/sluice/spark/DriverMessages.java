package io.sluice.spark;

/**
 * What executors tell and ask the driver's plugin. Arrays of strings: both sides can read them whatever class loader their
 * RPC threads have.
 */
final class DriverMessages {
  static final String REPORT = "report";
  static final String ENDPOINTS = "endpoints";
  static final String LOST_OUTPUT = "lost-output";

  private DriverMessages() {}

  /** An executor uses the TaskManager that other hosts reach at {@code host:port}. */
  static String[] report(String taskManagerId, String host, int port) {
    return new String[] {REPORT, taskManagerId, host, Integer.toString(port)};
  }

  /** Asks for all endpoints the driver has a connection to; answered by an array of HOST:PORT. */
  static String[] endpoints() {
    return new String[] {ENDPOINTS};
  }

  /** Asks the driver to forget one map output. */
  static String[] lostOutput(int shuffleId, long mapId, int mapIndex) {
    return new String[] {
      LOST_OUTPUT, Integer.toString(shuffleId), Long.toString(mapId), Integer.toString(mapIndex)
    };
  }
}
