/** Label, hint and, if 0 switches the attribute off, the word for 0; English is in the OpenAPI document. */
export const CHINESE = {
  polling_wait: ['长轮询等待时间', '队列为空时，未指定等待时间的接收请求等待多久。'],
  visibility_timeout: ['消息隐藏时长', '消费者处理一条消息的时间；超时未删除，消息重新可接收。'],
  max_message_bytes: ['消息最大长度', '消息体字节数，超过则拒绝发送。'],
  retention: ['消息保留时间', '消息自发送起的生命周期，到期后无论是否消费都会移除。'],
  delay: ['默认延时', '发送时未指定延时的消息的延时，须短于消息保留时间。'],
  max_backlog: ['最大堆积消息数', '堆积（可接收、处理中、延时）达到该数量后拒绝发送。'],
  max_delayed: ['最大延时消息数', '超出的延时消息按顺序等待空位。'],
  rewind: ['回溯窗口', '自消息发送起可恢复的时间，不超过消息保留时间。', '未开启'],
  dead_letter_queue: ['死信队列名', '须为已有的非事务队列，且自身没有死信队列；最多 6 个队列可共用一个死信队列。'],
  dead_letter_max_receives: ['最大接收次数', '达到该次数的接收超时未删除后，消息转入死信队列。', '不转入'],
  dead_letter_after: ['最长未消费时间', '自消息可接收起计算，须短于消息保留时间。', '不转入'],
  transactional: ['事务队列', '接受半消息，生产者提交后才可接收；创建后不可更改。'],
  first_check: ['首次回查时间', '半消息未决定时，多久后首次向生产者回查；之后间隔加倍，最长 5 分钟。'],
  max_checks: ['最大回查次数', '达到该次数后不再回查，等待人工决定。'],
  auto_delete_after: [
    '闲置自动删除',
    '闲置超过该时间后删除队列。发送、接收、复制、修改隐藏时长或配置均视为使用，队列中有处理中或延时消息时亦然；服务停止的时间不计入。事务队列、死信队列和设置了死信队列的队列不能使用。',
    '不自动删除',
  ],
  auto_delete_only_empty: ['仅在队列为空时删除', '若不勾选，消息会随队列一起删除。'],
  filter_type: ['过滤类型', '订阅筛选消息的方式：按标签或按路由键；创建后不可更改。'],
  strategy: ['重试策略', '投递失败后的重试方式：间隔递增，持续一天，期间继续投递其他消息；或在一分钟内重试三次，期间后续消息等待，之后丢弃。'],
  content_format: ['推送内容', '推送到 URL 的请求内容：含消息属性和消息体的 JSON，或仅消息体。'],
  filter_tags: ['过滤标签', '用于标签主题：只接收含其中任一标签的消息；留空表示接收全部消息。'],
  binding_keys: ['绑定键', '用于路由主题，至少一个：只接收与其中任一模式匹配的消息。* 匹配一个单词，# 匹配任意多个单词（可以为零个）。'],
  paused: ['暂停', '不投递消息，期间发布的消息等待。'],
};

/** Values of choices. */
export default {
  'attribute.filter_type.tag': ['tags', '标签'],
  'attribute.filter_type.routing': ['routing key', '路由匹配'],
  'attribute.strategy.exponential_decay': ['for a day, at growing intervals', '指数退避，持续一天'],
  'attribute.strategy.backoff': ['in order, three times, then dropped', '保持顺序，重试三次后丢弃'],
  'attribute.content_format.json': ['JSON with facts of the message', 'JSON（含消息属性）'],
  'attribute.content_format.simplified': ['the body alone', '仅消息体'],
};
