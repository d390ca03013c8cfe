package underlay.mapreduce;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.jar.JarFile;

/**
 * Prints the list of classes for a class archive: those of Java's own archive, and all classes of some jars. Java skips classes that
 * can't be archived because others that they need are missing.
 *
 * <p>Arguments: the jars.
 */
public final class ClassList {
  private static final String SUFFIX = ".class";

  private ClassList() {}

  public static void main(String[] jars) throws IOException {
    StringBuilder text = new StringBuilder();
    Path own = Path.of(System.getProperty("java.home"), "lib", "classlist");
    if (Files.isReadable(own)) {
      Files.readAllLines(own).forEach(line -> text.append(line).append('\n'));
    }
    for (String jar : jars) {
      for (String name : classes(jar)) {
        text.append(name).append('\n');
      }
    }
    System.out.print(text);
  }

  /** The names of a jar's classes, with slashes, without those for other versions of Java. */
  private static List<String> classes(String jar) throws IOException {
    try (JarFile file = new JarFile(jar)) {
      return file.stream()
          .map(entry -> entry.getName())
          .filter(name -> name.endsWith(SUFFIX) && !name.startsWith("META-INF/"))
          .map(name -> name.substring(0, name.length() - SUFFIX.length()))
          .filter(name -> !name.endsWith("module-info") && !name.endsWith("package-info"))
          .toList();
    }
  }
}
