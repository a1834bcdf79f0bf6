import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonConfigurationKeys;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/**
 * A NameNode and a DataNode in one process, on loopback, for tests: OneNodeHdfs DIR RPC_PORT HTTP_PORT DATA_HTTP_PORT
 * [PERMISSIONS]. Prints READY when files can be written; goes on where it was when DIR has data. PERMISSIONS (true, false) says
 * whether users are kept apart.
 */
public class OneNodeHdfs {
  public static void main(String[] args) throws Exception {
    String dir = new File(args[0]).getAbsolutePath();
    Configuration conf = new HdfsConfiguration();
    conf.set(CommonConfigurationKeys.FS_DEFAULT_NAME_KEY, "hdfs://127.0.0.1:" + args[1]);
    conf.set("dfs.namenode.http-address", "127.0.0.1:" + args[2]);
    conf.set("dfs.datanode.http.address", "127.0.0.1:" + args[3]);
    conf.set("dfs.datanode.address", "127.0.0.1:0");
    conf.set("dfs.datanode.ipc.address", "127.0.0.1:0");
    conf.set("dfs.datanode.hostname", "127.0.0.1");
    conf.set("dfs.namenode.name.dir", "file://" + dir + "/name");
    conf.set("dfs.datanode.data.dir", "file://" + dir + "/data");
    conf.setInt("dfs.replication", 1);
    conf.setBoolean("dfs.permissions.enabled", args.length > 4 && Boolean.parseBoolean(args[4]));
    conf.setLong("dfs.namenode.safemode.extension", 0);
    conf.setLong("dfs.namenode.fs-limits.min-block-size", 4096);
    DefaultMetricsSystem.setMiniClusterMode(true);
    if (!new File(dir, "name/current/VERSION").exists()) {
      NameNode.format(conf);
    }
    NameNode names = NameNode.createNameNode(new String[0], conf);
    DataNode.createDataNode(new String[0], conf);
    while (names.isInSafeMode() || names.getNamesystem().getNumLiveDataNodes() < 1) {
      Thread.sleep(20);
    }
    System.out.println("READY");
    names.join();
  }
}
