import java.io.File;
import java.security.PrivilegedExceptionAction;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonConfigurationKeys;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.Token;

/**
 * A NameNode and a DataNode in one process, on loopback, for tests: OneNodeHdfs DIR RPC_PORT HTTP_PORT DATA_HTTP_PORT
 * [PERMISSIONS [TOKENS]]. Prints READY when files can be written; goes on where it was when DIR has data. PERMISSIONS (true,
 * false) says whether users are kept apart. TOKENS: delegation tokens are checked, as on a cluster with Kerberos but without
 * one; before READY it prints "TOKEN " and one of the user ann's.
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
    boolean tokens = args.length > 5 && Boolean.parseBoolean(args[5]);
    if (tokens) {
      conf.setBoolean("dfs.namenode.delegation.token.always-use", true);
      conf.setBoolean("ignore.secure.ports.for.testing", true);
      conf.setBoolean("ipc.client.fallback-to-simple-auth-allowed", true);
    }
    DefaultMetricsSystem.setMiniClusterMode(true);
    if (!new File(dir, "name/current/VERSION").exists()) {
      NameNode.format(conf);
    }
    NameNode names = NameNode.createNameNode(new String[0], conf);
    DataNode.createDataNode(new String[0], conf);
    while (names.isInSafeMode() || names.getNamesystem().getNumLiveDataNodes() < 1) {
      Thread.sleep(20);
    }
    if (tokens) {
      UserGroupInformation ann = UserGroupInformation.createRemoteUser("ann");
      PrivilegedExceptionAction<Token<?>> issue = () -> names.getRpcServer().getDelegationToken(new Text("ann"));
      System.out.println("TOKEN " + ann.doAs(issue).encodeToUrlString());
      // Both have logged in without a password; from here on requests over HTTP are those of a secure cluster.
      System.setProperty("java.security.krb5.realm", "TEST");
      System.setProperty("java.security.krb5.kdc", "127.0.0.1");
      Configuration secure = new Configuration(conf);
      secure.set("hadoop.security.authentication", "kerberos");
      UserGroupInformation.setConfiguration(secure);
    }
    System.out.println("READY");
    names.join();
  }
}
