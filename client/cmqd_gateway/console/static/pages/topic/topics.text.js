export default {
  'topics.create': ['Create topic', '新建主题'],
  'topics.subscriptions': ['Subscriptions', '订阅数'],
  'topics.none-found': ['No topic has “{search}” in its name.', '没有名称包含“{search}”的主题。'],
  'topics.empty': ['No topics yet', '还没有主题'],
  'topics.empty-text': [
    'A topic passes each published message to its subscriptions: a copy into a queue, or a POST to a URL. Subscriptions choose messages by tags or by a routing key.',
    '主题把每条发布的消息投递给它的订阅：复制到队列，或以 POST 请求推送到 URL。订阅通过标签或路由键筛选消息。',
  ],
  'topics.created': ['Topic {name} was created', '主题 {name} 已创建'],
  'topics.saved': ['Topic {name} was changed', '主题 {name} 已修改'],
  'topics.deleted': ['Topic {name} was deleted', '主题 {name} 已删除'],
  'topics.edit-title': ['Edit topic {name}', '修改主题 {name}'],
  'topics.delete-title': ['Delete topic {name}?', '删除主题 {name}？'],
  'topics.delete-text': [
    'Programs that publish to this topic will get an error. A topic with subscriptions is not deleted: end its subscriptions first. Copies in queues stay.',
    '删除后，向该主题发布消息的程序会收到错误。仍有订阅的主题不能删除，请先取消订阅。已复制到队列的消息不受影响。',
  ],
};
