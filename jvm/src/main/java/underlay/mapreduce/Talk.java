package underlay.mapreduce;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;

/**
 * One connection: a request in one line of JSON, then any number of answers, a line each. A second line, or the end of the connection,
 * kills the job that the request started.
 */
final class Talk implements Runnable {
  private static final int MAX_REQUEST_BYTES = 1 << 20;
  private static final ObjectMapper JSON = new ObjectMapper();

  /** Answers a request or throws. */
  interface Handler {
    ObjectNode answer(Request request, Talk talk) throws Exception;
  }

  private final SocketChannel channel;
  private final Handler handler;
  private final ByteBuffer in = ByteBuffer.allocate(64 << 10);
  private volatile boolean killed;
  private ObjectNode next;

  Talk(SocketChannel channel, Handler handler) {
    this.channel = channel;
    this.handler = handler;
  }

  boolean killed() {
    return killed;
  }

  /** Starts the next answer. */
  ObjectNode say(String event) {
    next = JSON.createObjectNode();
    next.put("event", event);
    return next;
  }

  /** Sends the answer that was started. */
  void send() throws IOException {
    byte[] line;
    try {
      line = (JSON.writeValueAsString(next) + "\n").getBytes(StandardCharsets.UTF_8);
    } catch (JsonProcessingException error) {
      throw new IOException(error);
    }
    ByteBuffer out = ByteBuffer.wrap(line);
    while (out.hasRemaining()) {
      channel.write(out);
    }
  }

  @Override
  public void run() {
    try (channel) {
      String line = readLine();
      if (line == null) {
        return;
      }
      Thread listener = new Thread(this::listen, "underlay-listener");
      listener.setDaemon(true);
      listener.start();
      try {
        next = handler.answer(JSON.readValue(line, Request.class), this);
      } catch (Exception | LinkageError error) {
        error.printStackTrace();
        String words = error.getMessage() == null ? error.toString() : error.getMessage();
        say("failed").put("problem", History.shortened(words));
      }
      send();
    } catch (IOException gone) {
      // The peer is gone, so the error can't be sent.
    }
  }

  private void listen() {
    try {
      if (!in.hasRemaining()) {
        in.clear();
        channel.read(in);
      }
    } catch (IOException closed) {
      // The end of the connection counts as a second line.
    }
    killed = true;
  }

  private String readLine() throws IOException {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    while (channel.read(in) >= 0) {
      in.flip();
      while (in.hasRemaining()) {
        byte next = in.get();
        if (next == '\n') {
          return line.toString(StandardCharsets.UTF_8);
        }
        line.write(next);
      }
      in.clear();
      if (line.size() > MAX_REQUEST_BYTES) {
        throw new IOException("a request of more than " + MAX_REQUEST_BYTES + " bytes");
      }
    }
    return null;
  }
}
